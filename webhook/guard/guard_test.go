// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"os"
	"path"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook/slim"
)

func decode(t *testing.T, json string) *slim.Pod {
	t.Helper()
	return must.Get(slim.Decode([]byte(json)))(t)
}

func TestPod(t *testing.T) {
	for _, tt := range []struct{ spec, field, remedy string }{
		{spec: `{}`},
		{spec: `{"hostNetwork":true,"hostUsers":false}`},
		{spec: `{"nodeName":"n1"}`, field: "spec.nodeName", remedy: "use nodeSelector or nodeAffinity"},
		{spec: `{"hostPID":true}`, field: "spec.hostPID", remedy: "remove it"},
		{spec: `{"hostIPC":true}`, field: "spec.hostIPC", remedy: "emptyDir with medium Memory"},
		{spec: `{"volumes":[{"name":"a","emptyDir":{}},{"name":"b","hostPath":{"path":"/dev"}}]}`,
			field: "spec.volumes[1].hostPath.path", remedy: "mount a narrower folder"},
	} {
		errs := Pod(decode(t, `{"spec":`+tt.spec+`}`), nil)
		expect(t, tt.spec, errs, tt.field, tt.remedy)
	}
}

func TestContainer(t *testing.T) {
	const security = "spec.containers[0].securityContext."
	for _, tt := range []struct{ container, field, remedy string }{
		{container: `{}`},
		{container: `{"securityContext":{"privileged":false,"capabilities":{"add":["IPC_LOCK","NET_ADMIN","SYS_NICE"],"drop":["ALL"]}}}`},
		{container: `{"resources":{"limits":{"nvidia.com/hostdev":"1","cpu":"1"}}}`},
		{container: `{"securityContext":{"privileged":true}}`, field: security + "privileged", remedy: "a pod without a share"},
		{container: `{"securityContext":{"capabilities":{"add":["NET_RAW","SYS_ADMIN"]}}}`,
			field: security + "capabilities.add[1]", remedy: "SYS_ADMIN opens the node"},
		{container: `{"securityContext":{"capabilities":{"add":["all"]}}}`, field: security + "capabilities.add[0]", remedy: "remove it"},
		{container: `{"securityContext":{"capabilities":{"add":["CAP_SYS_PTRACE"]}}}`, field: security + "capabilities.add[0]", remedy: "remove it"},
		{container: `{"securityContext":{"capabilities":{"add":["SYS_RAWIO"]}}}`, field: security + "capabilities.add[0]", remedy: "remove it"},
		{container: `{"securityContext":{"capabilities":{"add":["SYS_MODULE"]}}}`, field: security + "capabilities.add[0]", remedy: "remove it"},
		{container: `{"securityContext":{"capabilities":{"add":["BPF"]}}}`, field: security + "capabilities.add[0]", remedy: "remove it"},
		{container: `{"securityContext":{"capabilities":{"add":["DAC_READ_SEARCH"]}}}`, field: security + "capabilities.add[0]", remedy: "remove it"},
	} {
		pod := decode(t, `{"spec":{"containers":[`+tt.container+`]}}`)
		errs := Container(&pod.Spec.Containers[0], field.NewPath("spec", "containers").Index(0))
		expect(t, tt.container, errs, tt.field, tt.remedy)
	}
	expect(t, "none", Container(&slim.Container{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("0")}}}, field.NewPath("c")), "", "")
	one := resource.MustParse("1")
	for _, name := range []corev1.ResourceName{"nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"} {
		for side, r := range map[string]corev1.ResourceRequirements{
			"limits":   {Limits: corev1.ResourceList{name: one}, Requests: corev1.ResourceList{name: one}},
			"requests": {Requests: corev1.ResourceList{name: one}},
		} {
			errs := Container(&slim.Container{Resources: r}, field.NewPath("c"))
			expect(t, string(name), errs, "c.resources."+side+"["+string(name)+"]", "remove the one or the other")
		}
	}
}

func TestSharedMemory(t *testing.T) {
	for mount, refused := range map[string]bool{
		"/dev/shm": true, "/dev/shm/": true, "/dev//shm": true, "/dev/../dev/shm": true, "dev/shm": true, "/dev/shm/cache": true,
		"/dev/shmem": false, "/shm": false, "/data": false, "/dev": false,
	} {
		c := &slim.Container{VolumeMounts: []slim.VolumeMount{{MountPath: "/data"}, {MountPath: mount}}}
		wanted := ""
		if refused {
			wanted = "spec.containers[0].volumeMounts[1].mountPath"
		}
		expect(t, mount, SharedMemory(c, field.NewPath("spec", "containers").Index(0)), wanted, "Remove the mount")
	}
}

func TestHostPath(t *testing.T) {
	for _, p := range []string{"/", "//", "", "/dev", "/dev/", "/dev/nvidia0", "/dev/shm", "/dev/dri/card0", "/proc", "/proc/1/root",
		"/sys", "/sys/fs/cgroup", "/run", "/run/containerd/containerd.sock", "/var/run", "/var/run/nri/nri.sock",
		"/var/run/docker.sock", "/var", "/var/lib", "/var/lib/kubelet", "/var/lib/kubelet/device-plugins", "/var/lib/vernier",
		"/var/lib/vernier/x", "/var/lib/../lib/vernier", "/etc", "/etc/cdi", "/etc/kubernetes/manifests", "/opt", "/opt/nri/plugins",
		"/usr", "/usr/bin", "/usr/sbin/runc", "/bin", "/sbin", "/lib", "/lib64", "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib64",
		"/boot", "/root", path.Join("/root", ".ssh"), "/etc/systemd/system", "/etc/cron.d", "/etc/ld.so.preload", "/etc/nvidia-container-runtime/config.toml", "/var/spool",
		"/usr/local", "/usr/local/sbin/runc", "/usr/local/bin/containerd", "/usr/libexec/kubernetes", "/opt/cni/bin", "/etc/cni/net.d",
		"/etc/crontab", "/etc/cron.hourly/x", "/etc/ld.so.cache",
		"/etc/udev/rules.d", "/etc/modprobe.d", "/etc/sudoers.d/x", "/etc/ssh", "/etc/shadow", "/etc/ld.so.conf", "/var/lib/etcd/member",
		"/var/log", "/var/log/pods", "/home", "/home/kubernetes/bin", "/opt/containerd/bin", "/usr/local/cuda", "/usr/local/lib"} {
		if hostPath(p, nil) == "" {
			t.Errorf("%s is let through", p)
		}
	}
	for _, p := range []string{"/data", "/mnt/models", "/home/me", "/dev/infiniband", "/dev/infiniband/uverbs0",
		"/dev/hugepages", "/etc/localtime", "/opt/models", "/var/lib/vernier-models", "/devices", "/runs", "/var/running", "/tmp", "/usr/share", "/libs", "/etc/sshd", "/var/logs"} {
		if reason := hostPath(p, nil); reason != "" {
			t.Errorf("%s is refused: %s", p, reason)
		}
	}
}

// The page names each folder that is refused.
func TestFoldersAreOnThePage(t *testing.T) {
	page := must.Get(os.ReadFile("../../docs/reference/annotations.md"))(t)
	for _, s := range sensitive {
		for _, folder := range s.paths {
			if !strings.Contains(string(page), "`"+folder+"`") {
				t.Errorf("docs/reference/annotations.md does not name %s", folder)
			}
		}
	}
}

func TestEnv(t *testing.T) {
	pod := decode(t, `{"spec":{"containers":[{"env":[
		{"name":"A","value":"1"},{"name":"NVIDIA_VISIBLE_DEVICES","value":"all"},{"name":"CUDA_VISIBLE_DEVICES","value":"0"},
		{"name":"CUDA_MPS_PIPE_DIRECTORY","value":"/x"},{"name":"NVIDIA_DRIVER_CAPABILITIES","value":"all"},
		{"name":"LD_PRELOAD","value":"libjemalloc.so"},{"name":"VERNIER_SLICE","value":"uid"}]}]}}`)
	remove, warnings, errs := Env(&pod.Spec.Containers[0], true, field.NewPath("spec", "containers").Index(0))
	if len(remove) != 2 || remove[0] != 1 || remove[1] != 3 {
		t.Errorf("removed %v, want 1 and 3", remove)
	}
	expect(t, "env", errs, "spec.containers[0].env[6].name", "choose another")
	for i, want := range []string{"env[NVIDIA_VISIBLE_DEVICES]: removed", "env[CUDA_MPS_PIPE_DIRECTORY]: removed", "env[LD_PRELOAD]: kept"} {
		if len(warnings) != 3 || !strings.Contains(warnings[i], want) {
			t.Fatalf("warnings %q, want three with %q", warnings, want)
		}
	}
	remove, warnings, errs = Env(&pod.Spec.Containers[0], false, field.NewPath("spec", "containers").Index(0))
	if len(remove) != 1 || remove[0] != 1 || len(warnings) != 1 || len(errs) != 1 {
		t.Errorf("beside a share: removed %v, warnings %q, errors %v", remove, warnings, errs)
	}
	for _, w := range warnings {
		// The API server cuts a warning off at 256 characters.
		if len(w)+len("initContainers[31]") > 256 {
			t.Errorf("warning of %d characters: %s", len(w), w)
		}
	}
}

// A CUDA_VISIBLE_DEVICES that shows other devices than those of the share is warned about.
func TestDevices(t *testing.T) {
	for _, c := range []struct {
		env, want string
		gpus      api.DeviceCount
		mode      api.Mode
	}{
		{env: `{"name":"CUDA_VISIBLE_DEVICES","value":"0"}`, gpus: 1},
		{env: `{"name":"CUDA_VISIBLE_DEVICES","value":"0,1"}`, gpus: 2},
		{env: `{"name":"NVIDIA_VISIBLE_DEVICES","value":"7"}`, gpus: 1},
		{env: `{"name":"CUDA_VISIBLE_DEVICES","value":"1"}`, gpus: 1, want: "env[CUDA_VISIBLE_DEVICES]: remove it"},
		{env: `{"name":"CUDA_VISIBLE_DEVICES","value":"0,1"}`, gpus: 1, want: "the node agent set 0"},
		{env: `{"name":"CUDA_VISIBLE_DEVICES","value":"GPU-1"}`, gpus: 2, want: "the node agent set 0,1"},
		{env: `{"name":"CUDA_VISIBLE_DEVICES","value":"MIG-1"}`, gpus: 1, mode: api.ModeLimiter, want: "the node agent set 0"},
		{env: `{"name":"CUDA_VISIBLE_DEVICES","value":"MIG-1"}`, gpus: 1, mode: api.ModeMIG, want: "kept"},
		{env: `{"name":"CUDA_VISIBLE_DEVICES","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}`, gpus: 1, want: "remove it"},
		{env: `{"name":"CUDA_VISIBLE_DEVICES","value":"1"}`, gpus: 2, want: "kept: it hides GPUs of the share, which has 2"},
		{env: `{"name":"CUDA_VISIBLE_DEVICES","value":""}`, gpus: 1, want: "kept: it hides"},
		{env: `{"name":"CUDA_VISIBLE_DEVICES","value":"` + strings.Repeat("0,", 100_000) + `9"}`, gpus: 1, want: "remove it"},
	} {
		pod := decode(t, `{"spec":{"containers":[{"env":[`+c.env+`]}]}}`)
		got := Devices(&pod.Spec.Containers[0], api.Share{GPUs: c.gpus}, c.mode, field.NewPath("spec", "containers").Index(0))
		if text := strings.Join(got, "\n"); (text == "") != (c.want == "") || !strings.Contains(text, c.want) || len(text) > 200 {
			t.Errorf("%.60s of %d GPUs: %q, want %q", c.env, c.gpus, got, c.want)
		}
	}
}

// expect is no error where fieldName is empty, else exactly one, on that field.
func expect(t *testing.T, what string, errs field.ErrorList, fieldName, remedy string) {
	t.Helper()
	if fieldName == "" {
		if len(errs) > 0 {
			t.Errorf("%s: refused: %v", what, errs)
		}
		return
	}
	if len(errs) != 1 || errs[0].Field != fieldName || !strings.Contains(errs[0].Error(), remedy) {
		t.Errorf("%s: got %v, want one error on %s that says %q", what, errs, fieldName, remedy)
	}
}
