// SPDX-License-Identifier: Apache-2.0

//go:build clients

package clients

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/simgpu"
)

const memMiB = 4096 // of the limited runs

// A client is a program and what its output says of the GPU. Limited, the output is the
// same but for the memory.
type client struct {
	program, what string
	// argv with $ROOT for the folder of the packages.
	argv []string
	// says are parts of the output, or of the file "output" where that is set.
	says   *regexp.Regexp
	output string
	// memory is what says finds natively, and limited instead; empty if it finds none.
	memory, limited string
	// why it cannot run; empty if it can.
	why string
}

var clients = []client{
	{program: "nvtop", what: "a terminal's screen", why: "it needs a terminal"},
	{
		program: "gpustat", what: "memory of the device",
		argv: []string{"python3", "$ROOT/usr/bin/gpustat", "--no-header", "--no-color"},
		says: regexp.MustCompile(`NVIDIA A100-SXM4-80GB|/ *\d+ MB`), memory: "/ 81920 MB", limited: "/  4096 MB",
	},
	{
		program: "python3-pynvml", what: "memory of the device",
		argv: []string{"python3", "-c", `import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0); print(n.nvmlDeviceGetName(h), n.nvmlDeviceGetMemoryInfo(h).total >> 20)`},
		says: regexp.MustCompile(`.+`), memory: "81920", limited: "4096",
	},
	{
		program: "python3-pycuda", what: "a kernel of PTX, copies, free memory",
		argv: []string{"python3", "testdata/kernel.py"},
		says: regexp.MustCompile(`(?s).+`), memory: "total 81313", limited: "total 4096",
	},
	{
		program: "hwloc", what: "the CUDA and NVML plugins",
		argv: []string{"$ROOT/usr/bin/lstopo-no-graphics", "--only", "osdev"},
		says: regexp.MustCompile(`(CoProc|GPU)\(.*`),
	},
	{
		program: "boinc-client", what: "detects the GPU",
		argv: []string{"$ROOT/usr/bin/boinc", "--detect_gpus"}, output: "coproc_info.xml",
		says:   regexp.MustCompile(`<(name|available_ram|multiProcessorCount)>.*|<warning>(NVIDIA|.coproc).*`),
		memory: "85262860288", limited: "4294967296",
	},
	{
		program: "ffmpeg", what: "uploads, scales by its own PTX, downloads",
		argv: []string{"$ROOT/usr/bin/ffmpeg", "-hide_banner", "-loglevel", "error", "-init_hw_device", "cuda=gpu",
			"-filter_hw_device", "gpu", "-f", "lavfi", "-i", "testsrc=d=0.2:s=320x240",
			"-vf", "format=yuv420p,hwupload_cuda,scale_cuda=160:120,hwdownload,format=yuv420p", "-f", "framecrc", "-"},
		says: regexp.MustCompile(`(?m)^0, +4,.*`),
	},
	{program: "ffmpeg", what: "decodes and encodes (NVDEC, NVENC)", why: "these libraries of NVIDIA's are not simulated"},
	{
		program: "hashcat", what: "compiles by NVRTC, tries 1,000 passwords",
		argv: []string{"$ROOT/usr/bin/hashcat", "--backend-ignore-opencl", "--self-test-disable", "--potfile-disable",
			"--logfile-disable", "--force", "-n", "1", "-u", "1", "-m", "0", "-a", "3", "8743b52063cd84097a65d1633f5c74f5", "?d?d?d"},
		says: regexp.MustCompile(`(Status|Progress)\.+: .*`),
	},
}

// run runs a client in a folder of its own and returns what its output says of the GPU.
func run(t *testing.T, s *simgpu.Sim, root string, c client, prefix ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	libraries := filepath.Join(root, "usr/lib/x86_64-linux-gnu")
	argv := prefix
	for _, arg := range c.argv {
		if strings.HasPrefix(arg, "testdata/") {
			arg, _ = filepath.Abs(arg)
		}
		argv = append(argv, strings.ReplaceAll(arg, "$ROOT", root))
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(s.Env(), "HOME="+cmd.Dir, "PYTHONPATH="+filepath.Join(root, "usr/lib/python3/dist-packages"),
		"HWLOC_PLUGINS_PATH="+filepath.Join(libraries, "hwloc"),
		"LD_LIBRARY_PATH="+strings.Join([]string{s.Bin, libraries, libraries + "/blas", libraries + "/lapack", libraries + "/pulseaudio"}, ":"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	text := out.Bytes()
	if c.output != "" {
		if text, _ = os.ReadFile(filepath.Join(cmd.Dir, c.output)); text == nil {
			text = out.Bytes()
		}
	}
	said := strings.Join(c.says.FindAllString(string(text), -1), "\n")
	if said == "" {
		return "", fmt.Errorf("%v, and says\n%s", err, text)
	}
	return said, nil
}

// Each program says the same limited as it says native, but for the memory, which is its
// share.
func TestClients(t *testing.T) {
	unpack := exec.Command("./unpack")
	unpack.Stderr = os.Stderr
	out := must.Get(unpack.Output())(t)
	root := strings.TrimSpace(string(out))
	bin := os.Getenv("VERNIER_BIN")
	if bin == "" {
		bin, _ = filepath.Abs("../../bin")
	}
	var table bytes.Buffer
	rows := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(rows, "PROGRAM\tWHAT IT DOES\tNATIVE\tLIMITED\tSAME")
	defer func() {
		rows.Flush()
		fmt.Print(table.String())
	}()
	answer := func(said string, err error) string {
		if err != nil {
			return "failed"
		}
		return "ran"
	}
	for _, c := range clients {
		if c.why != "" {
			fmt.Fprintf(rows, "%s\t%s\t-\t-\tnot run: %s\n", c.program, c.what, c.why)
			continue
		}
		t.Run(c.program, func(t *testing.T) {
			s := simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100}}})
			native, nativeErr := run(t, s, root, c)
			limited, limitedErr := run(t, s, root, c, filepath.Join(bin, "vgpu-run"), "--core", "50",
				"--mem-mib", fmt.Sprint(memMiB), "--report", filepath.Join(t.TempDir(), "report"), "--")
			same := "yes"
			switch want := strings.ReplaceAll(native, c.memory, c.limited); {
			case nativeErr != nil || limitedErr != nil:
				same = "no"
				t.Errorf("native: %v\nlimited: %v", nativeErr, limitedErr)
			case c.memory != "" && !strings.Contains(native, c.memory):
				same = "no"
				t.Errorf("native it says\n%s\nwithout %q", native, c.memory)
			case c.memory != "" && want == limited:
				same = fmt.Sprintf("yes, with %d MiB", memMiB)
			case c.memory == "" && native != limited || c.memory != "":
				same = "no"
				t.Errorf("native it says\n%s\nlimited\n%s", native, limited)
			}
			fmt.Fprintf(rows, "%s\t%s\t%s\t%s\t%s\n", c.program, c.what, answer(native, nativeErr), answer(limited, limitedErr), same)
		})
	}
}
