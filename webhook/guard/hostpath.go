// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"path"
	"strings"
)

// sensitive are folders of a node through which a container reaches devices,
// other containers or the parts that enforce shares. What lies below one is
// sensitive too, and so is every folder above: it contains it.
var sensitive = []struct{ path, reason string }{
	{"/dev", "holds the node's devices"},
	{"/proc", "shows and opens the node's processes"},
	{"/sys", "steers the node's devices and cgroups"},
	// Sockets of containerd, CRI-O, Docker and NRI, and CDI specs.
	{"/run", "holds the sockets of the container runtime"},
	{"/etc/cdi", "holds the descriptions of the node's devices"},
	{"/etc/containerd", "configures the container runtime"},
	{"/etc/crio", "configures the container runtime"},
	{"/etc/nri", "configures the container runtime"},
	{"/opt/nri", "holds plugins of the container runtime"},
	{"/etc/kubernetes", "holds the node's static pods and credentials"},
	{"/var/lib/kubelet", "holds other pods' volumes and the kubelet's sockets"},
	{"/var/lib/containerd", "holds other containers' files"},
	{"/var/lib/containers", "holds other containers' files"},
	{"/var/lib/docker", "holds other containers' files"},
	{"/var/lib/rancher", "holds the node's runtime, static pods and credentials"},
	{"/var/lib/vernier", "holds the limits of shares"},
	// Whoever writes these has the node the next time that it runs them.
	{"/bin", "holds the node's programs"},
	{"/sbin", "holds the node's programs"},
	{"/usr/bin", "holds the node's programs"},
	{"/usr/sbin", "holds the node's programs"},
	// Where containerd's and runc's own releases are unpacked.
	{"/usr/local/bin", "holds the node's programs"},
	{"/usr/local/sbin", "holds the node's programs"},
	{"/usr/libexec", "holds the node's programs"},
	{"/opt/cni", "holds the node's programs"},
	{"/lib", "holds the node's libraries, the driver's among them"},
	{"/lib64", "holds the node's libraries, the driver's among them"},
	{"/usr/lib", "holds the node's libraries, the driver's among them"},
	{"/usr/lib64", "holds the node's libraries, the driver's among them"},
	{"/boot", "holds the node's kernel"},
	{"/root", "holds the keys of the node's administrator"},
	{"/etc/cni", "says what the node runs"},
	{"/etc/cron.d", "says what the node runs"},
	{"/etc/cron.daily", "says what the node runs"},
	{"/etc/cron.hourly", "says what the node runs"},
	{"/etc/cron.monthly", "says what the node runs"},
	{"/etc/cron.weekly", "says what the node runs"},
	{"/etc/crontab", "says what the node runs"},
	{"/etc/ld.so.cache", "says what the node's programs load"},
	{"/etc/ld.so.conf.d", "says what the node's programs load"},
	{"/etc/ld.so.preload", "says what the node's programs load"},
	{"/etc/nvidia-container-runtime", "configures the container runtime"},
	{"/etc/systemd", "says what the node runs"},
	{"/var/spool/cron", "says what the node runs"},
}

// harmless are folders below a sensitive one that GPU programs do mount, and
// that hold no GPU.
var harmless = []string{"/dev/hugepages", "/dev/infiniband", "/dev/mqueue"}

// hostPath says why a folder of the node is sensitive; empty where it is not.
func hostPath(p string) string {
	p = path.Clean("/" + p)
	if p == "/var/run" || strings.HasPrefix(p, "/var/run/") {
		// A link on every distribution of today.
		p = strings.TrimPrefix(p, "/var")
	}
	for _, h := range harmless {
		if within(p, h) {
			return ""
		}
	}
	for _, s := range sensitive {
		if within(p, s.path) {
			return s.reason
		}
		if within(s.path, p) {
			return "contains " + s.path + ", which " + s.reason
		}
	}
	return ""
}

// within tells whether p is the folder or below it.
func within(p, folder string) bool {
	return p == folder || folder == "/" || strings.HasPrefix(p, folder+"/")
}
