// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"vernier.dev/vernier/test/must"
)

func TestConfig(t *testing.T) {
	nodes := func(names ...string) (n []NodeConfig) {
		for _, name := range names {
			n = append(n, NodeConfig{Name: name})
		}
		return n
	}
	for name, tc := range map[string]struct {
		cfg  Config
		want string // in the error; empty is none
	}{
		"zero":            {Config{}, ""},
		"two nodes":       {Config{Nodes: nodes("n1", "n2")}, ""},
		"longest":         {Config{Dir: "/" + strings.Repeat("d", maxShimPath-len("/n1")), Nodes: nodes("n1")}, ""},
		"too long":        {Config{Dir: "/" + strings.Repeat("d", maxShimPath-len("/n1")+1), Nodes: nodes("n1")}, "choose a shorter Dir"},
		"same name":       {Config{Nodes: nodes("n1", "n1")}, `"n1" is taken`},
		"reserved":        {Config{Nodes: nodes("etcd")}, `"etcd" is taken`},
		"system's group":  {Config{Nodes: nodes("cluster")}, `"cluster" is taken`},
		"no name":         {Config{Nodes: nodes("")}, `node name ""`},
		"bad name":        {Config{Nodes: nodes("N1")}, `node name "N1"`},
		"too many":        {Config{Nodes: nodes("a", "b", "c", "d", "e", "f", "g", "h", "i", "j")}, "at most 9"},
		"relative dir":    {Config{Dir: "here"}, `"here" is not an absolute path`},
		"relative target": {Config{Nodes: []NodeConfig{{Name: "n1", Mounts: []Mount{{Source: "/a", Destination: "b"}}}}}, `"b"`},
		"relative own":    {Config{Nodes: []NodeConfig{{Name: "n1", Own: map[string]string{"c": "d"}}}}, `"c"`},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.cfg.setDefaults()
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

// TestDirOfOthersIsNotTaken: Down removes Dir whole.
func TestDirOfOthersIsNotTaken(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{Dir: dir}
	if err := cfg.checkDir(); err != nil {
		t.Errorf("an empty folder: %v", err)
	}
	must.Do(t, os.WriteFile(filepath.Join(dir, "thesis.txt"), nil, 0o644))
	if err := cfg.checkDir(); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("a folder with something in it: %v", err)
	}
	cfg.Dir = filepath.Join(dir, "absent")
	if err := cfg.checkDir(); err != nil {
		t.Errorf("an absent folder: %v", err)
	}
}

var testSettings = settings{
	Name: "n1", IP: "10.250.0.11", Dir: "/d/n1", PKI: "/d/pki", CDIDir: "/d/n1/cdi", NRISocket: "/d/n1/nri/nri.sock",
	Cgroup: "vernier-n1", PodSubnet: "10.251.1.0/24", PauseImage: PauseImage, Runc: "/t/runc", CNIBin: "/t/cni", ConfigVersion: 4,
}

func TestKubeletConfiguration(t *testing.T) {
	data := must.Get(render("kubelet.yaml", testSettings))(t)
	var config map[string]any
	must.Do(t, yaml.UnmarshalStrict(data, &config))
	for field, want := range map[string]any{
		"cgroupRoot": "/vernier-n1", "address": "10.250.0.11", "containerRuntimeEndpoint": "unix:///d/n1/containerd.sock",
		"tlsCertFile": "/d/pki/n1.crt",
		// With it the kubelet would refuse to start where a shadowed sysctl is missing.
		"protectKernelDefaults": false,
	} {
		if config[field] != want {
			t.Errorf("%s is %v, want %v", field, config[field], want)
		}
	}
}

func TestContainerdConfiguration(t *testing.T) {
	with := testSettings
	with.BaseSpec = "/d/n1/base-spec.json"
	older := testSettings
	older.ConfigVersion = 3
	for _, tc := range []struct {
		s      settings
		base   bool
		socket string
	}{
		{testSettings, false, "[plugins.'io.containerd.server.v1.grpc']\n    address = '/d/n1/containerd.sock'"},
		{with, true, "[plugins.'io.containerd.server.v1.ttrpc']\n    address = '/d/n1/containerd.sock.ttrpc'"},
		{older, false, "version = 3\n"},
		{older, false, "\n[grpc]\n  address = '/d/n1/containerd.sock'\n"},
	} {
		data := must.Get(render("containerd.toml", tc.s))(t)
		text := string(data)
		if got := strings.Contains(text, "base_runtime_spec = '/d/n1/base-spec.json'"); got != tc.base {
			t.Errorf("base spec in the configuration: %v, want %v", got, tc.base)
		}
		for _, want := range []string{
			tc.socket, "socket_path = '/d/n1/nri/nri.sock'", "cdi_spec_dirs = ['/d/n1/cdi']", "sandbox = '" + PauseImage + "'",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("no %s in\n%s", want, text)
			}
		}
		// Whatever it writes has to be the node's own.
		for _, path := range []string{"/run/containerd", "/var/lib/containerd", "/var/run", "/etc/"} {
			for line := range strings.Lines(text) {
				if strings.Contains(line, path) && !strings.Contains(line, "#") {
					t.Errorf("the machine's own %s: %s", path, line)
				}
			}
		}
	}
}

func TestCNIConfiguration(t *testing.T) {
	data := must.Get(render("cni.conflist", testSettings))(t)
	if !json.Valid(data) || !strings.Contains(string(data), `"10.251.1.0/24"`) {
		t.Errorf("%s", data)
	}
}

func TestWithMounts(t *testing.T) {
	base := `{"process":{"cwd":"/","rlimits":[{"type":"RLIMIT_NOFILE"}]},"mounts":[{"destination":"/proc"}],"linux":{}}`
	data := must.Get(withMounts([]byte(base), []Mount{{"/state", "/run/state", false}, {"/lib", "/run/lib", true}}))(t)
	var spec struct {
		Process struct {
			Cwd     string
			Rlimits []any
		}
		Mounts []struct {
			Source, Destination string
			Options             []string
		}
	}
	must.Do(t, json.Unmarshal(data, &spec))
	if spec.Process.Cwd != "/" || len(spec.Process.Rlimits) != 0 || len(spec.Mounts) != 3 {
		t.Fatalf("%s", data)
	}
	if m := spec.Mounts[1]; m.Source != "/state" || m.Destination != "/run/state" || !slices.Contains(m.Options, "rw") {
		t.Errorf("%+v", m)
	}
	if m := spec.Mounts[2]; !slices.Contains(m.Options, "ro") {
		t.Errorf("%+v", m)
	}
	for _, bad := range []string{`{}`, `{"process":{}}`, `nonsense`} {
		if _, err := withMounts([]byte(bad), nil); err == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
}

func TestProblemsNameTheirRemedies(t *testing.T) {
	got := Problems{{"no ip", "apt-get install -y iproute2"}, {"no root", "sudo -E"}}.Error()
	for _, want := range []string{"no ip\n    remedy: apt-get install -y iproute2", "no root\n    remedy: sudo -E"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func TestJoinLabels(t *testing.T) {
	if got := joinLabels(map[string]string{"b": "2", "a": "1"}); got != "a=1,b=2" {
		t.Errorf("%q", got)
	}
}
