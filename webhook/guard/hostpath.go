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
var sensitive = []struct {
	reason string
	paths  []string
}{
	{"holds the node's devices", []string{"/dev"}},
	{"shows and opens the node's processes", []string{"/proc"}},
	{"steers the node's devices and cgroups", []string{"/sys"}},
	// Sockets of containerd, CRI-O, Docker and NRI, and CDI specs.
	{"holds the sockets of the container runtime", []string{"/run"}},
	{"holds the descriptions of the node's devices", []string{"/etc/cdi"}},
	{"configures the container runtime", []string{
		"/etc/containerd", "/etc/crio", "/etc/docker", "/etc/nri", "/etc/nvidia-container-runtime"}},
	{"holds plugins of the container runtime", []string{"/opt/nri"}},
	{"holds the node's static pods and credentials", []string{"/etc/kubernetes"}},
	{"holds other pods' volumes and the kubelet's sockets", []string{"/var/lib/kubelet"}},
	{"holds other containers' files", []string{"/var/lib/containerd", "/var/lib/containers", "/var/lib/docker"}},
	{"holds the cluster's state, its Secrets among it", []string{"/var/lib/etcd"}},
	{"holds the node's runtime, static pods and credentials", []string{"/var/lib/rancher"}},
	{"holds the limits of shares", []string{"/var/lib/vernier"}},
	// The kubelet follows links there as root when somebody asks for a container's log.
	{"holds other pods' logs", []string{"/var/log"}},
	// A process that writes these has the node the next time that it runs them.
	{"holds the node's programs", []string{
		"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/libexec", "/opt/cni", "/opt/containerd", "/home/kubernetes/bin"}},
	// Where containerd's and runc's own releases are unpacked, with libraries that come
	// before the distribution's.
	{"holds the node's programs and libraries", []string{"/usr/local"}},
	{"holds the node's libraries, the driver's among them", []string{"/lib", "/lib64", "/usr/lib", "/usr/lib64"}},
	{"holds the node's kernel", []string{"/boot"}},
	{"holds the keys of the node's administrator", []string{"/root"}},
	{"holds the node's keys", []string{"/etc/ssh"}},
	{"says who may log in to the node", []string{"/etc/shadow", "/etc/passwd", "/etc/pam.d"}},
	{"says who is root on the node", []string{"/etc/sudoers", "/etc/sudoers.d"}},
	{"says what the node runs", []string{
		"/etc/cni", "/etc/cron.d", "/etc/cron.daily", "/etc/cron.hourly", "/etc/cron.monthly", "/etc/cron.weekly",
		"/etc/crontab", "/etc/systemd", "/etc/udev", "/var/spool/cron"}},
	{"says what the node's programs load", []string{
		"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload"}},
	{"says what the node's kernel loads", []string{"/etc/modprobe.d", "/etc/modules-load.d"}},
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
		for _, folder := range s.paths {
			if within(p, folder) {
				return s.reason
			}
			if within(folder, p) {
				return "contains " + folder + ", which " + s.reason
			}
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
