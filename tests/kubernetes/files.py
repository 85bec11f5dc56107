"""Configuration of the node's programs: containerd, the kubelet, kube-proxy, CoreDNS, the pods' network."""

from __future__ import annotations

import json
from pathlib import Path

NODE = "storeside-node"
# Addresses exist only in the node's own network namespace.
ADDRESS = "10.89.0.2"
SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
PODS = "10.244.0.0/24"
REGISTRY_PORT = 5000
API = "https://127.0.0.1:6443"


def containerd(root: Path, plugins: Path) -> str:
    """Return containerd's configuration; `plugins` is the folder of the CNI plugins."""
    return f"""\
version = 2
root = "{root}"
state = "/run/containerd"
oom_score = 0
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.internal.v1.tracing",
]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.10"
  restrict_oom_score_adj = true
  tolerate_missing_hugetlb_controller = true
  disable_hugetlb_controller = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    discard_unpacked_layers = true
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/etc/containerd/certs.d"
"""


def mirror() -> str:
    """Return containerd's hosts.toml: every image comes from the registry of the node, and from nowhere else."""
    url = f"http://127.0.0.1:{REGISTRY_PORT}"
    return f'server = "{url}"\n[host."{url}"]\n  capabilities = ["pull", "resolve"]\n'


def network() -> str:
    """Return the CNI configuration of the pods' network."""
    bridge = {
        "type": "bridge",
        "bridge": "pods0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, ports]})


def kubelet(pki: Path, cgroup: str, resolv: Path) -> str:
    """Return the kubelet's configuration."""
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(pki / "kubelet.pem"),
            "tlsPrivateKeyFile": str(pki / "kubelet.pem"),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{cgroup}",
            "clusterDNS": [ADDRESS],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "failSwapOn": False,
            "failCgroupV1": False,
            "featureGates": {"KubeletInUserNamespace": True},
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
                "nodefs.inodesFree": "1%",
            },
            "resolvConf": str(resolv),
            "oomScoreAdj": 0,
            "imageGCHighThresholdPercent": 100,
        }
    )


def kube_proxy(pki: Path) -> str:
    """Return kube-proxy's configuration. It leaves the kernel's settings of conntrack alone."""
    return json.dumps(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(pki / "kube-proxy.conf")},
            "mode": "iptables",
            "clusterCIDR": PODS,
            "hostnameOverride": NODE,
            "oomScoreAdj": 0,
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }
    )


def corefile(pki: Path) -> str:
    """Return CoreDNS's configuration."""
    return f"""\
.:53 {{
  bind {ADDRESS}
  errors
  kubernetes cluster.local {{
    kubeconfig {pki / "coredns.conf"}
    pods insecure
  }}
  cache 5
}}
"""


def dns_rights() -> str:
    """Return the role by which CoreDNS reads services, as a list for ``kubectl apply``."""
    group = "rbac.authorization.k8s.io"
    role = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "system:coredns"},
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["endpoints", "services", "pods", "namespaces"],
                "verbs": ["list", "watch"],
            },
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        ],
    }
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "system:coredns"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "system:coredns"},
        "subjects": [{"kind": "User", "name": "system:coredns", "apiGroup": group}],
    }
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [role, binding]})
