"""The node: the first process of its namespaces, whose end ends all processes that it has started.

``python -m tests.kubernetes.node FOLDER BINARIES PLUGINS IMAGES CGROUP``, in new namespaces for mounts, network,
processes and host name. Overlays cover ``/etc``, ``/var`` and ``/opt``, so what is written there stays in FOLDER.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.kubernetes import files
from tests.kubernetes.files import ADDRESS, NODE

READY_SECONDS = 120
# The kubelet sets these for the whole machine. In the node's namespace it finds files with the expected values.
KERNEL = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


class Node:
    """The programs of one node, with everything that they write below `folder`."""

    def __init__(self, folder: Path, binaries: Path, plugins: Path, images: Path, cgroup: str) -> None:
        self.folder = folder
        self.pki = folder / "pki"
        self.kube = binaries / "kube"
        self.coredns = binaries / "coredns"
        self.plugins = plugins
        self.images = images
        self.cgroup = cgroup

    def run(self) -> None:
        """Start all programs, make the file ``started``, and wait for the end of processes forever."""
        self._mounts()
        self._network()
        self._files()
        self._programs()
        (self.folder / "started").touch()
        while True:
            try:
                os.wait()
            except ChildProcessError:
                time.sleep(1)

    def _mounts(self) -> None:
        for name in ("var", "etc", "opt"):
            upper, work = self.folder / "overlay" / name / "upper", self.folder / "overlay" / name / "work"
            upper.mkdir(parents=True)
            work.mkdir()
            options = f"lowerdir=/{name},upperdir={upper},workdir={work}"
            _run("mount", "-t", "overlay", "-o", options, "overlay", f"/{name}")
        _run("mount", "-t", "tmpfs", "-o", "mode=755", "run", "/run")
        for name in ("/run/lock", "/run/netns"):
            os.mkdir(name)
        for name, place in (("kubelet", "/var/lib/kubelet"), ("log", "/var/log")):
            (self.folder / name).mkdir()
            os.makedirs(place, exist_ok=True)
            _run("mount", "--bind", str(self.folder / name), place)
        os.makedirs("/var/log/pods", exist_ok=True)
        _run("mount", "--make-rshared", "/")
        (self.folder / "kernel").mkdir()
        for name, value in KERNEL.items():
            covered = self.folder / "kernel" / name.replace("/", ".")
            covered.write_text(f"{value}\n")
            _run("mount", "--bind", str(covered), f"/proc/sys/{name}")

    def _network(self) -> None:
        for command in (
            "link set lo up",
            "link add node0 type veth peer name node0p",
            f"address add {ADDRESS}/24 dev node0",
            "link set node0 up",
            "link set node0p up",
            # addresses of services need a route before kube-proxy rewrites them
            f"route add {files.SERVICES} dev node0",
        ):
            _run("ip", *command.split())
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        bridged = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
        if bridged.exists():
            bridged.write_text("1")
        socket.sethostname(NODE)

    def _files(self) -> None:
        resolv = self.folder / "resolv.conf"
        resolv.write_text(f"nameserver {ADDRESS}\n")
        for path, text in {
            "/etc/resolv.conf": f"nameserver {ADDRESS}\nsearch svc.cluster.local cluster.local\noptions ndots:5\n",
            "/etc/cni/net.d/10-pods.conflist": files.network(),
            "/etc/containerd/certs.d/_default/hosts.toml": files.mirror(),
            f"{self.folder}/containerd.toml": files.containerd(self.folder / "containerd", self.plugins),
            f"{self.folder}/kubelet.json": files.kubelet(self.pki, self.cgroup, resolv),
            f"{self.folder}/kube-proxy.json": files.kube_proxy(self.pki),
            f"{self.folder}/Corefile": files.corefile(self.pki),
        }.items():
            place = Path(path)
            place.parent.mkdir(parents=True, exist_ok=True)
            if place.is_symlink():
                place.unlink()
            place.write_text(text)

    def _programs(self) -> None:
        pki, at = self.pki, "127.0.0.1"
        self._start(
            "registry", sys.executable, "-m", "tests.kubernetes.registry", str(self.images), str(files.REGISTRY_PORT)
        )
        self._start("containerd", "containerd", "-c", f"{self.folder}/containerd.toml")
        self._kube(
            "etcd", f"--data-dir={self.folder}/etcd", "--unsafe-no-fsync", "--log-level=warn",
            f"--listen-client-urls=http://{at}:2379", f"--advertise-client-urls=http://{at}:2379",
            f"--listen-peer-urls=http://{at}:2380",
        )  # fmt: skip
        self._kube(
            "kube-apiserver", f"--etcd-servers=http://{at}:2379", f"--advertise-address={ADDRESS}",
            f"--client-ca-file={pki}/ca.crt", f"--tls-cert-file={pki}/apiserver.pem",
            f"--tls-private-key-file={pki}/apiserver.pem", f"--kubelet-certificate-authority={pki}/ca.crt",
            f"--kubelet-client-certificate={pki}/apiserver-kubelet.pem",
            f"--kubelet-client-key={pki}/apiserver-kubelet.pem", "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={pki}/service-accounts.key",
            f"--service-account-signing-key-file={pki}/service-accounts.key",
            f"--service-cluster-ip-range={files.SERVICES}", "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction", "--allow-privileged",
        )  # fmt: skip
        self._wait("the API server", "get", "--raw", "/readyz")
        self._kube(
            "kube-controller-manager", f"--kubeconfig={pki}/kube-controller-manager.conf",
            f"--service-account-private-key-file={pki}/service-accounts.key", f"--root-ca-file={pki}/ca.crt",
            "--use-service-account-credentials", "--leader-elect=false",
        )  # fmt: skip
        self._kube("kube-scheduler", f"--kubeconfig={pki}/kube-scheduler.conf", "--leader-elect=false")
        self._kube(
            "kubelet", f"--config={self.folder}/kubelet.json", f"--kubeconfig={pki}/kubelet.conf",
            f"--node-ip={ADDRESS}", f"--hostname-override={NODE}",
        )  # fmt: skip
        self._kube("kube-proxy", f"--config={self.folder}/kube-proxy.json")
        self._kubectl("apply", "-f", "-", stdin=files.dns_rights())
        self._start("coredns", str(self.coredns), "-conf", f"{self.folder}/Corefile")
        self._wait("the node", "wait", f"node/{NODE}", "--for=condition=Ready", "--timeout=10s")

    def _kube(self, name: str, *arguments: str) -> None:
        self._start(name, str(self.kube), name, *arguments)

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _kubectl(self, *arguments: str, stdin: str = "") -> int:
        command = [str(self.kube), "kubectl", f"--kubeconfig={self.pki}/admin.conf", *arguments]
        return subprocess.run(command, input=stdin, text=True, capture_output=True, check=False).returncode

    def _wait(self, what: str, *command: str) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while self._kubectl(*command):
            if time.monotonic() > deadline:
                raise SystemExit(f"{what} is not ready after {READY_SECONDS} s")
            time.sleep(0.3)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    given, binaries_folder, plugins_folder, images_folder = (Path(part) for part in sys.argv[1:5])
    Node(given, binaries_folder, plugins_folder, images_folder, sys.argv[5]).run()
