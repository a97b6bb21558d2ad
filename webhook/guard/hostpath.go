// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/slim"
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
	{"/etc/docker", "configures the container runtime"},
	{"/etc/nri", "configures the container runtime"},
	{"/opt/nri", "holds plugins of the container runtime"},
	{"/etc/kubernetes", "holds the node's static pods and credentials"},
	{"/var/lib/kubelet", "holds other pods' volumes and the kubelet's sockets"},
	{"/var/lib/containerd", "holds other containers' files"},
	{"/var/lib/containers", "holds other containers' files"},
	{"/var/lib/docker", "holds other containers' files"},
	{"/var/lib/etcd", "holds the cluster's state, its Secrets among it"},
	{"/var/lib/rancher", "holds the node's runtime, static pods and credentials"},
	{"/var/lib/vernier", "holds the limits of shares"},
	// The kubelet follows links there as root when somebody asks for a container's log.
	{"/var/log", "holds other pods' logs"},
	// A process that writes these has the node the next time that it runs them.
	{"/bin", "holds the node's programs"},
	{"/sbin", "holds the node's programs"},
	{"/usr/bin", "holds the node's programs"},
	{"/usr/sbin", "holds the node's programs"},
	// Where containerd's and runc's own releases are unpacked, with libraries that come
	// before the distribution's.
	{"/usr/local", "holds the node's programs and libraries"},
	{"/usr/libexec", "holds the node's programs"},
	{"/opt/cni", "holds the node's programs"},
	{"/opt/containerd", "holds the node's programs"},
	{"/home/kubernetes/bin", "holds the node's programs"},
	{"/lib", "holds the node's libraries, the driver's among them"},
	{"/lib64", "holds the node's libraries, the driver's among them"},
	{"/usr/lib", "holds the node's libraries, the driver's among them"},
	{"/usr/lib64", "holds the node's libraries, the driver's among them"},
	{"/boot", "holds the node's kernel"},
	{"/root", "holds the keys of the node's administrator"},
	{"/etc/ssh", "holds the node's keys"},
	{"/etc/shadow", "says who may log in to the node"},
	{"/etc/passwd", "says who may log in to the node"},
	{"/etc/pam.d", "says who may log in to the node"},
	{"/etc/sudoers", "says who is root on the node"},
	{"/etc/sudoers.d", "says who is root on the node"},
	{"/etc/cni", "says what the node runs"},
	{"/etc/cron.d", "says what the node runs"},
	{"/etc/cron.daily", "says what the node runs"},
	{"/etc/cron.hourly", "says what the node runs"},
	{"/etc/cron.monthly", "says what the node runs"},
	{"/etc/cron.weekly", "says what the node runs"},
	{"/etc/crontab", "says what the node runs"},
	{"/etc/ld.so.cache", "says what the node's programs load"},
	{"/etc/ld.so.conf", "says what the node's programs load"},
	{"/etc/ld.so.conf.d", "says what the node's programs load"},
	{"/etc/ld.so.preload", "says what the node's programs load"},
	{"/etc/nvidia-container-runtime", "configures the container runtime"},
	{"/etc/systemd", "says what the node runs"},
	{"/etc/udev", "says what the node runs"},
	{"/etc/modprobe.d", "says what the node's kernel loads"},
	{"/etc/modules-load.d", "says what the node's kernel loads"},
	{"/var/spool/cron", "says what the node runs"},
}

// harmless are folders below a sensitive one that GPU programs do mount, and
// that hold no GPU.
var harmless = []string{"/dev/hugepages", "/dev/infiniband", "/dev/mqueue"}

// clean reports whether the policy can compare the path: CEL has nothing that cleans one.
func clean(p string) bool { return path.IsAbs(p) && (p == path.Clean(p) || p == path.Clean(p)+"/") }

// hostPath says why a folder of the node is sensitive; empty where it is not. Where
// an operator has named the folders that may be mounted, those alone decide.
func hostPath(p string, allowed []string) string {
	p = path.Clean("/" + p)
	if len(allowed) > 0 {
		if slices.ContainsFunc(allowed, func(folder string) bool { return within(p, folder) }) {
			return ""
		}
		return "is not within what this cluster allows, " + strings.Join(allowed, ", ")
	}
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

// hostPaths refuses the folders of the node that a pod with a share must not mount.
func hostPaths(volumes []slim.Volume, allowed []string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	count := 0
	for i := range volumes {
		if volumes[i].HostPath == nil {
			continue
		}
		if count++; count > api.MaxShareHostPaths {
			return append(errs, field.Invalid(at, len(volumes), fmt.Sprintf(
				"a pod with a share may have at most %d volumes of type hostPath: mount a folder that contains several of them", api.MaxShareHostPaths)))
		}
		p, at := volumes[i].HostPath.Path, at.Index(i).Child("hostPath", "path")
		switch reason := hostPath(p, allowed); {
		case len(p) > api.MaxHostPath:
			errs = append(errs, field.TooLong(at, "", api.MaxHostPath))
		case reason != "":
			errs = append(errs, field.Forbidden(at, fmt.Sprintf(
				"%s %s: mount a narrower folder, or run this in a pod without a share", p, reason)))
		case !clean(p):
			errs = append(errs, field.Invalid(at, p, "write it as "+path.Clean("/"+p)))
		}
	}
	return errs
}

// AllowedHostPaths reads the folders of the node that pods with shares may mount, separated
// by commas, as an operator writes them.
func AllowedHostPaths(list string) ([]string, error) {
	if list == "" {
		return nil, nil
	}
	allowed := strings.Split(list, ",")
	for _, p := range allowed {
		if !path.IsAbs(p) || p != path.Clean(p) {
			return nil, fmt.Errorf("%q is no absolute path in its shortest form: write it such as /data/models", p)
		}
	}
	return allowed, nil
}

// within reports whether p is the folder or below it.
func within(p, folder string) bool {
	return p == folder || folder == "/" || strings.HasPrefix(p, folder+"/")
}
