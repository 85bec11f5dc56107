"""The changes to AIStore's source and to its Kubernetes client, with the reason for each.

AIStore runs ETLs only in Kubernetes mode. That mode assumes a pod with a service account mounted below /var/run and
with network interfaces besides loopback. Two changes let environment variables override both assumptions; without
the variables the binary behaves like the stock one. Another change adds to each request for an ETL a proof that
AIStore sent it. The others fix faults of ETLs that end early; docs/aistore-bug-reports.md has a report of each.
"""

from __future__ import annotations

from storeside.stack.building.patch import CLIENT_GO, LOOPBACK_VARIABLE, MODULE, SERVICE_ACCOUNT_VARIABLE, Patch
from storeside.stack.building.secure_patches import SECURE_PATCHES

_PROOF_HEADER = 'http.Header{"Ais-Etl-Proof": {etlProof(%s.secret, etlRequest)}}'

PATCHES = (
    Patch(
        module=CLIENT_GO,
        file="rest/config.go",
        sha256="eec2bc86377a181b1e0da51dcbe77a33402344b16d9c48e989e870e5e21b576b",
        replacements=(
            (
                "\tconst (\n"
                '\t\ttokenFile  = "/var/run/secrets/kubernetes.io/serviceaccount/token"\n'
                '\t\trootCAFile = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"\n'
                "\t)\n",
                f'\tserviceAccount := os.Getenv("{SERVICE_ACCOUNT_VARIABLE}")\n'
                '\tif serviceAccount == "" {\n'
                '\t\tserviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"\n'
                "\t}\n"
                '\ttokenFile, rootCAFile := serviceAccount+"/token", serviceAccount+"/ca.crt"\n',
            ),
        ),
    ),
    Patch(
        module=MODULE,
        file="ais/utils.go",
        sha256="51761cfec1cfa1a7d769da020791ecc54838ace6085184e4e7c10f0204efd798",
        replacements=tuple(
            (
                f"{rule}\n\t\t\t\tif k8s.IsK8s() {{\n",
                f'{rule}\n\t\t\t\tif k8s.IsK8s() && os.Getenv("{LOOPBACK_VARIABLE}") != "1" {{\n',
            )
            for rule in ("// K8s: always exclude loopback", "// K8s: always exclude 127.0.0.1 loopback")
        ),
    ),
    Patch(
        module=MODULE,
        file="ais/htrun.go",
        sha256="1227ab08fdf901643b77f961fb89119cf8a73ae6691fd5d62ca71325b71b91ce",
        replacements=(
            (
                "\tif h.pubAddrAny(config) {\n",
                '\tif h.pubAddrAny(config) && h.si.PubNet.Hostname != "127.0.0.1" {\n',
            ),
            # A target that rejoined just before the proxy restarted waited in vain for the proxy's health.
            (
                "\tif !cmn.Rom.SignVerifyEnabled() {\n\t\treturn 0, nil\n\t}\n\tdebug.Assert(len(h.si.VerifyingKey)",
                "\tif !cmn.Rom.SignVerifyEnabled() || _isPlainHealth(r) {\n"
                "\t\treturn 0, nil\n\t}\n\tdebug.Assert(len(h.si.VerifyingKey)",
            ),
            # The stock code accepts unsigned requests for half a minute after each start.
            (
                "\t\tif h.ClusterStarted() {\n"
                '\t\t\treturn http.StatusServiceUnavailable, fmt.Errorf("%s: invalid %s post cluster startup",',
                "\t\tif h.ClusterStarted() || "
                "(cmn.Rom.SignVerifyEnabled() && r.URL.Path != apc.URLPathMetasync.S) {\n"
                '\t\t\treturn http.StatusServiceUnavailable, fmt.Errorf("%s: invalid %s post cluster startup",',
            ),
            (
                "\t\tvar (\n"
                "\t\t\tnow    = mono.NanoTime()\n"
                "\t\t\tconfig = cmn.GCO.Get()\n"
                "\t\t)\n"
                "\t\tif h.cluUptime(now) < config.Timeout.Startup.D() {\n"
                "\t\t\treturn 0, nil\n"
                "\t\t}\n",
                "",
            ),
        ),
    ),
    # Two faults of the watcher. Its event stream ends when the API server ends: the stock loop then uses a full core
    # forever, and the ETL appears to run. Also, `stop` uses fields that only `start` sets: a target panics when an
    # ETL is removed before its watcher has started, or after the watcher failed to start.
    Patch(
        module=MODULE,
        file="ext/etl/pod_watcher.go",
        sha256="e6070d25ddedbabbbabe433409a31282241d3dc24dda093bc421bec9fad60091",
        replacements=(
            (
                "\t\tcase event := <-pw.watcher.ResultChan():\n",
                "\t\tcase event, open := <-pw.watcher.ResultChan():\n"
                "\t\t\tif !open {\n"
                "\t\t\t\tpw.podCtxCancel()\n"
                "\t\t\t\tselect {\n"
                "\t\t\t\tcase <-pw.stopCh.Listen():\n"
                "\t\t\t\tdefault:\n"
                "\t\t\t\t\terrCtx := &cmn.ETLErrCtx{PodName: pw.podName, PodStatus: pw.GetPodStatus()}\n"
                '\t\t\t\t\tpw.xetl.Abort(cmn.NewErrETL(errCtx, "the watch of the pod has ended"))\n'
                "\t\t\t\t}\n"
                "\t\t\t\treturn\n"
                "\t\t\t}\n",
            ),
            ("\tpsMutex         sync.Mutex\n", "\tpsMutex         sync.Mutex\n\tstartMutex      sync.Mutex\n"),
            (
                "\t\trecentPodStatus: &k8s.PodStatus{},\n\t}\n",
                "\t\trecentPodStatus: &k8s.PodStatus{},\n"
                "\t\tstopCh:          cos.NewStopCh(),\n"
                "\t}\n"
                "\tpw.podCtx, pw.podCtxCancel = context.WithCancel(context.Background())\n",
            ),
            (
                "\tpw.watcher, err = client.WatchPodEvents(pw.podName)\n"
                "\tif err != nil {\n"
                "\t\treturn err\n"
                "\t}\n"
                "\n"
                "\tpw.stopCh = cos.NewStopCh()\n"
                "\tpw.podCtx, pw.podCtxCancel = context.WithCancel(context.Background())\n",
                "\twatcher, err := client.WatchPodEvents(pw.podName)\n"
                "\tif err != nil {\n"
                "\t\treturn err\n"
                "\t}\n"
                "\n"
                "\tpw.startMutex.Lock()\n"
                "\tdefer pw.startMutex.Unlock()\n"
                "\tif pw.stopCh.Stopped() {\n"
                "\t\twatcher.Stop()\n"
                '\t\treturn fmt.Errorf("the ETL was stopped before pod %s was watched", pw.podName)\n'
                "\t}\n"
                "\tpw.watcher = watcher\n",
            ),
            (
                "\tpw.stopCh.Close()\n\tpw.watcher.Stop()\n",
                "\tpw.startMutex.Lock()\n"
                "\tpw.stopCh.Close()\n"
                "\twatcher := pw.watcher\n"
                "\tpw.startMutex.Unlock()\n"
                "\tif watcher == nil {\n"
                "\t\tpw.podCtxCancel()\n"
                "\t\treturn\n"
                "\t}\n"
                "\twatcher.Stop()\n",
            ),
        ),
    ),
    # `Stop` finds an ETL as soon as the manager has it, so the watcher must exist before.
    Patch(
        module=MODULE,
        file="ext/etl/transform.go",
        sha256="463752ee26c31b261b7371151834dcf479f304289819c16928bbab867705a35e",
        replacements=(
            # The stock code checks only 4.7 s after each deletion whether the service, then the pod, is gone.
            (
                "\tinterval := cos.ProbingFrequency(DefaultInitTimeout)\n"
                "\terr = wait.PollUntilContextTimeout(context.Background(), interval, DefaultInitTimeout, false,",
                "\tinterval := cos.PollSleepShort\n"
                "\terr = wait.PollUntilContextTimeout(context.Background(), interval, DefaultInitTimeout, true,",
            ),
            (
                "\t// 2. Create communicator\n",
                "\tboot.pw = newPodWatcher(boot.pod.GetName(), nil)\n\n\t// 2. Create communicator\n",
            ),
            (
                "\tboot.pw = newPodWatcher(boot.pod.GetName(), comm.Xact())\n",
                "\tboot.pw.xetl = comm.Xact()\n",
            ),
            (
                "\t\t_, boot := mgr.getByName(name)\n\t\tif boot == nil {\n",
                "\t\tcomm, boot := mgr.getByName(name)\n\t\tif boot == nil {\n",
            ),
            (
                "\t\tpipeline.Join(boot.schema + boot.addr)\n",
                '\t\tpipeline.Join(boot.schema + boot.addr + "?etl_proof="'
                " + etlProof(comm.GetSecret(), etlRequest))\n",
            ),
        ),
    ),
    # Stock requests for an ETL do not show that AIStore sent them, so anyone who reaches the pod's port can make it
    # fetch and store objects. The patched requests carry a keyed hash; the key is the secret that AIStore gives to
    # the pod. A client that AIStore redirects to a pod (hpull) gets a hash that is valid only for its own request.
    Patch(
        module=MODULE,
        file="ext/etl/communicator.go",
        sha256="de0480bf3f347f260d2b2beb364753583def332c4b59d17759190264f7a166f0",
        replacements=(
            ('\t"context"\n', '\t"context"\n\t"crypto/hmac"\n\t"crypto/sha256"\n\t"encoding/hex"\n'),
            ('\t"net/url"\n', '\t"net/url"\n\t"strings"\n'),
            (
                "func (c *baseComm) GetSecret() string   { return c.secret }\n",
                "func (c *baseComm) GetSecret() string   { return c.secret }\n"
                "\n"
                "// what the proof of all requests but redirected ones is of\n"
                'const etlRequest = "request"\n'
                "\n"
                "func etlProof(secret, of string) string {\n"
                "\tmac := hmac.New(sha256.New, []byte(secret))\n"
                "\tmac.Write([]byte(of))\n"
                "\treturn hex.EncodeToString(mac.Sum(nil))\n"
                "}\n",
            ),
            (
                "\t\treqArgs.Path = apc.ETLDownload\n",
                "\t\treqArgs.Path = apc.ETLDownload\n\t\treqArgs.Header = " + _PROOF_HEADER % "pc" + "\n",
            ),
            (
                "\t\tBase:   pc.podURI,\n\t\tPath:   path,\n\t\tHeader: http.Header{},\n",
                "\t\tBase:   pc.podURI,\n\t\tPath:   path,\n\t\tHeader: " + _PROOF_HEADER % "pc" + ",\n",
            ),
            (
                "\t\tBodyR:  http.NoBody,\n\t\tHeader: http.Header{},\n",
                "\t\tBodyR:  http.NoBody,\n\t\tHeader: " + _PROOF_HEADER % "rc" + ",\n",
            ),
            (
                "\turl := cos.JoinQuery(cos.JoinPath(rc.podURI, path), query)\n",
                "\turl := cos.JoinQuery(cos.JoinPath(rc.podURI, path), query)\n"
                '\tmark := "?"\n'
                '\tif strings.Contains(url, "?") {\n'
                '\t\tmark = "&"\n'
                "\t}\n"
                '\turl += mark + "etl_proof=" + etlProof(rc.secret, strings.TrimPrefix(url, rc.podURI))\n',
            ),
        ),
    ),
    # The stock manager gets the communicator before its xaction exists, and keeps it if the xaction cannot be
    # created: listing or stopping ETLs then panics.
    Patch(
        module=MODULE,
        file="ext/etl/boot.go",
        sha256="ebd28ac7e32cfdac6603293b1ac6dbc2f0ac0b7f4840a15abdb5a4f14148cd17",
        replacements=(
            (
                "\tif err = mgr.add(msg.Name(), comm, boot); err != nil {\n"
                "\t\treturn nil, err\n"
                "\t}\n"
                "\n"
                "\tif err = comm.setupXaction(xid); err != nil {\n"
                "\t\treturn nil, err\n"
                "\t}\n",
                "\tif err = comm.setupXaction(xid); err != nil {\n"
                "\t\treturn nil, err\n"
                "\t}\n"
                "\n"
                "\tif err = mgr.add(msg.Name(), comm, boot); err != nil {\n"
                "\t\tcomm.stop()\n"
                "\t\treturn nil, err\n"
                "\t}\n",
            ),
            (
                "\t\t\tName:  DirectPut,\n",
                '\t\t\tName:  "AIS_ETL_PROOF",\n\t\t\tValue: "true",\n'
                "\t\t}, corev1.EnvVar{\n\t\t\tName:  DirectPut,\n",
            ),
        ),
    ),
    # A panic in the listing leaves the manager's lock held: every later start, stop and listing then hangs.
    Patch(
        module=MODULE,
        file="ext/etl/comm_manager.go",
        sha256="c37f64bdb6190be0c1bc7f584723cf36e59baba5f50e9c777a6c22f77f0e6561",
        replacements=(
            (
                "\tr.mtx.RLock()\n\tetls := make([]Info, 0, len(r.m))\n",
                "\tr.mtx.RLock()\n\tdefer r.mtx.RUnlock()\n\tetls := make([]Info, 0, len(r.m))\n",
            ),
            ("\tr.mtx.RUnlock()\n\treturn etls\n", "\treturn etls\n"),
        ),
    ),
    # Ending an ETL iterates over its sessions without their lock. A session that is created at that moment finds a
    # nil map and panics with the lock held; the jobs of all other sessions then hang when they return theirs.
    Patch(
        module=MODULE,
        file="ext/etl/websocket_comm.go",
        sha256="35e786ff978639333bf8a8596be46679c1ff988461917e3e6838ec159ffd5804",
        replacements=(
            (
                "websocket.DefaultDialer.Dial(ws.podURI, nil)\n",
                "websocket.DefaultDialer.Dial(ws.podURI, " + _PROOF_HEADER % "ws" + ")\n",
            ),
            (
                "\tfor _, session := range ws.sessions {\n"
                "\t\tsession.Finish(cmn.ErrXactUserAbort)\n"
                "\t}\n"
                "\tws.sessions = nil\n",
                "\tws.m.Lock()\n"
                "\tsessions := ws.sessions\n"
                "\tws.sessions = nil\n"
                "\tws.m.Unlock()\n"
                "\tfor _, session := range sessions {\n"
                "\t\tsession.Finish(cmn.ErrXactUserAbort)\n"
                "\t}\n",
            ),
            (
                "\tws.sessions[xctn.ID()] = wss\n\tws.m.Unlock()\n",
                "\tstopped := ws.sessions == nil\n"
                "\tif !stopped {\n"
                "\t\tws.sessions[xctn.ID()] = wss\n"
                "\t}\n"
                "\tws.m.Unlock()\n"
                "\tif stopped {\n"
                "\t\twss.Finish(cmn.ErrXactUserAbort)\n"
                '\t\treturn nil, cos.NewErrNotFound(core.T, "ETL "+ws.ETLName()+", which has been stopped,")\n'
                "\t}\n",
            ),
        ),
    ),
    # Aborting holds the registry's lock while it ends an ETL, which takes seconds and requests the same lock again.
    # If a new xaction waits for the lock in between, both wait forever, and every control call with them.
    Patch(
        module=MODULE,
        file="xact/xreg/xreg.go",
        sha256="84d3a9080647048df831c1f1644a082acd35e9d8c1813dc675f929c5b815fb57",
        replacements=(
            (
                "\tr.entries.forEach(args.do)\n",
                "\tvar all []Renewable\n"
                "\tr.entries.forEach(func(entry Renewable) bool {\n"
                "\t\tall = append(all, entry)\n"
                "\t\treturn true\n"
                "\t})\n"
                "\tfor _, entry := range all {\n"
                "\t\targs.do(entry)\n"
                "\t}\n",
            ),
        ),
    ),
    *SECURE_PATCHES,
)
