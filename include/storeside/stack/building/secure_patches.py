"""The changes for a secure cluster: nodes prove that they belong to it, and sign their requests to each other.

Without ``auth.intra_cluster`` in the configuration these changes have no effect.
"""

from __future__ import annotations

from storeside.stack.building.patch import AUTHN_HOST_VARIABLE, MODULE, SEED_VARIABLE, Patch

SECURE_PATCHES = (
    # AIStore 5.0 contains the code that signs requests between nodes and checks the proof of a joining node, but
    # disables it so that clusters of 4.x can be upgraded node by node. Without it, every program that reaches a
    # node's intra-cluster port is accepted as a node. Our clusters never have nodes of 4.x.
    Patch(
        module=MODULE,
        file="cmn/config.go",
        sha256="8410f048192bd325923fbfb4a4554036a5bdd1e7c4afe0336adcea6b86789522",
        replacements=(
            (
                'func IsV50Bridge() bool { return strings.HasPrefix(VersionAIStore, "5.0") }\n',
                "func IsV50Bridge() bool { return false }\n",
            ),
        ),
    ),
    # A stock node generates a new key at each start, and the other nodes learn it from the primary. They refuse a
    # restarted primary, and so never learn its key. Here the key comes from a seed that the stack keeps.
    Patch(
        module=MODULE,
        file="cmn/cos/ed25519.go",
        sha256="f8504736571abcbef4ec66fbd6b23ab33bb6033eb44e8204a558b48ba9966a08",
        replacements=(
            ('\t"encoding/base64"\n', '\t"encoding/base64"\n\t"encoding/hex"\n'),
            ('\t"fmt"\n', '\t"fmt"\n\t"os"\n'),
            (
                "\treturn ed25519.GenerateKey(rand.Reader)\n",
                f'\tif seed, err := hex.DecodeString(os.Getenv("{SEED_VARIABLE}")); err == nil && '
                "len(seed) == ed25519.SeedSize {\n"
                "\t\tpriv := ed25519.NewKeyFromSeed(seed)\n"
                "\t\treturn priv.Public().(ed25519.PublicKey), priv, nil\n"
                "\t}\n"
                "\treturn ed25519.GenerateKey(rand.Reader)\n",
            ),
        ),
    ),
    # For some seconds after each start, a stock node accepts unsigned requests and does not sign its own.
    Patch(
        module=MODULE,
        file="ais/signverify.go",
        sha256="e6b75da3725cc98640c0efdc40c22dd62ab0ac484f4404409509c86e64d25ff7",
        replacements=(
            (
                "\treturn (on && cur.on == on) || !svs.graceExpired(cur.last)\n",
                "\treturn on || !svs.graceExpired(cur.last)\n",
            ),
            (
                "\tcur := svs.cur.Load()\n"
                "\n"
                "\tif !on || cur.on != on {\n"
                "\t\treturn false\n"
                "\t}\n"
                "\treturn svs.graceExpired(cur.last)\n",
                "\treturn on\n",
            ),
        ),
    ),
    # The stock proxy's intra-control port accepts calls from any program, including calls that change the
    # configuration and so turn off AuthN. A joining node's key is not known yet: it sends a POST and proves its
    # identity in another way.
    *(
        Patch(
            module=MODULE,
            file=file,
            sha256=sha256,
            replacements=(
                (
                    f"\tp.{handler}(w, r, false /*isPub*/)\n",
                    f"\tif {exempt}cmn.Rom.SignVerifyEnabled() && !p.ensureIntraControl(w, r, false) {{\n"
                    "\t\treturn\n"
                    "\t}\n"
                    f"\tp.{handler}(w, r, false /*isPub*/)\n",
                ),
            ),
        )
        for file, sha256, handler, exempt in (
            (
                "ais/prxclu.go",
                "72c4f269b9372f41070446977ca41969146d33029520bd9cb1c4e0c2e030c960",
                "_clu",
                "r.Method != http.MethodPost && ",
            ),
            ("ais/proxy.go", "44c81bc96d0cb86b3a29279bcb2838341956d8b5ea9307722675a211f3a6c19b", "_dae", ""),
            ("ais/prxrev.go", "19540bc4dae301b39048349bc0836ffd810949eb1372039efdfc16ad728514c4", "_reverse", ""),
        )
    ),
    # Stock AuthN listens on all interfaces.
    Patch(
        module=MODULE,
        file="cmd/authn/hserv.go",
        sha256="90773e852ca8f0867b68df18d2e86bb0f331544694223bef2310c648eef6a2e1",
        replacements=(
            ('\t"net/http"\n', '\t"net/http"\n\t"os"\n'),
            ('\treturn ":" + port\n', f'\treturn os.Getenv("{AUTHN_HOST_VARIABLE}") + ":" + port\n'),
        ),
    ),
)
