// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"image"
	_ "image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// account makes a service account, bound to a cluster role if one is named, and
// gives a token of it.
func account(t *testing.T, name, role string) string {
	t.Helper()
	accounts := sys.Kube.CoreV1().ServiceAccounts(namespace)
	must.Get(accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() { must.Report(t, accounts.Delete(context.Background(), name, metav1.DeleteOptions{})) })
	if role != "" {
		bindings := sys.Kube.RbacV1().ClusterRoleBindings()
		must.Get(bindings.Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
		}, metav1.CreateOptions{}))(t)
		t.Cleanup(func() { must.Report(t, bindings.Delete(context.Background(), name, metav1.DeleteOptions{})) })
	}
	made := must.Get(accounts.CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{}))(t)
	return made.Status.Token
}

// pageOf is one allocator's page, reached as by kubectl port-forward.
func pageOf(t *testing.T, i int, token string) *httptest.Server {
	t.Helper()
	target := must.Get(url.Parse("http://127.0.0.1:8082"))(t)
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			if token != "" {
				r.Out.Header.Set("Authorization", "Bearer "+token)
			}
		},
		Transport: &http.Transport{DialContext: sys.Allocators[i].Place.Dial},
	}
	s := httptest.NewServer(forward)
	t.Cleanup(s.Close)
	return s
}

// readPage is the answer's status and text, 0 and why where there is none.
func readPage(url string) (int, string) {
	answer, err := http.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(text)
}

// Whoever may list ledgers sees the fleet, on every replica; nobody else does.
func TestPageIsForThoseWhoMayLook(t *testing.T) {
	good, other := account(t, "onlooker", "vernier-viewer"), account(t, "stranger", "")
	running := awaitReady(t, create(t, newPod("on-page").share(10, 10).on(small)))
	waits := create(t, newPod("page-waits").share(100, 100).on(small))
	class := &v1alpha1.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: "absent"}, Spec: v1alpha1.GPUClassSpec{
		Models: []string{"NVIDIA Z100"}, Unit: v1alpha1.GPUUnit{Core: 10, MemMiB: 1000}}}
	must.Do(t, sys.Client.Create(t.Context(), class))
	t.Cleanup(func() { must.Report(t, sys.Client.Delete(context.Background(), class)) })
	read := func(i int, token string) (int, string) { return readPage(pageOf(t, i, token).URL) }
	for i := range sys.Allocators {
		for _, token := range []string{"", "nonsense", other} {
			await(t, fmt.Sprintf("replica %d to turn away whoever has the token %q", i, token), func() (bool, string) {
				status, text := read(i, token)
				if status == http.StatusOK || strings.Contains(text, running.Name) {
					t.Fatalf("replica %d: %d: %s", i, status, text)
				}
				// One that has just been started answers nobody yet.
				return status == http.StatusUnauthorized && (token != other || strings.Contains(text, "bind the cluster role vernier-viewer")), fmt.Sprint(status, text)
			})
		}
		await(t, fmt.Sprintf("replica %d to show both pods, why one waits, and the class without GPUs", i), func() (bool, string) {
			status, text := read(i, good)
			return status == http.StatusOK && strings.Contains(text, "tenants/"+running.Name) &&
				strings.Contains(text, "tenants pod/"+waits.Name) && strings.Contains(text, "container main needs 100 % compute") &&
				strings.Contains(text, "Class absent: no GPU of the cluster is of its models (NVIDIA Z100)"), text
		})
	}
}

// A real browser draws the page, runs its script under the page's own policy, and
// keeps it live.
func TestPageInABrowser(t *testing.T) {
	running := awaitReady(t, create(t, newPod("drawn").share(40, 60).on(small)))
	s := pageOf(t, 0, account(t, "browser", "vernier-viewer"))
	dir := t.TempDir()
	// look has a browser look at the page, and returns what it prints and complains about.
	look := func(args ...string) (printed, complaints string) {
		t.Helper()
		// The role is known, and the replica has read the ledger, soon.
		await(t, "the page to show the pod", func() (bool, string) {
			_, text := readPage(s.URL)
			return strings.Contains(text, "tenants/"+running.Name), text
		})
		program, err := exec.LookPath("chromium-headless-shell")
		if err != nil {
			t.Fatalf("%v; remedy: test/deps.sh chromium-headless-shell fonts-dejavu-core", err)
		}
		args = append([]string{
			"--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--user-data-dir=" + filepath.Join(dir, "profile"),
			"--window-size=1280,900", "--enable-logging=stderr", "--virtual-time-budget=12000",
		}, args...)
		cmd := exec.CommandContext(t.Context(), program, args...)
		var out, said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &said
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %s", err, said.String())
		}
		for line := range strings.Lines(said.String()) {
			if strings.Contains(line, "CONSOLE") {
				complaints += line
			}
		}
		return out.String(), complaints
	}
	browse := func(args ...string) string {
		t.Helper()
		for replica := sys.Allocators[0]; ; {
			before := replica.ID()
			printed, complaints := look(args...)
			// One that loses its lease, as on a busy machine, ends itself and is started
			// again: nobody has served the browser meanwhile.
			if replica.ID() != before || !replica.Running() {
				continue
			}
			if complaints != "" {
				t.Errorf("the browser complains: %s", complaints)
			}
			return printed
		}
	}
	dom := browse("--dump-dom", s.URL)
	for _, want := range []string{"tenants/" + running.Name, `<span id="state" role="status">live</span>`, "<b>40</b> of 100 %"} {
		if !strings.Contains(dom, want) {
			t.Errorf("no %q in what the browser has:\n%s", want, dom)
		}
	}
	shot := filepath.Join(dir, "page.png")
	browse("--screenshot="+shot, s.URL)
	f := must.Get(os.Open(shot))(t)
	defer f.Close()
	drawn, _, err := image.Decode(f)
	must.Do(t, err)
	// The pod's part of the memory bar is 60 percent of its width in one colour.
	if widest := widestRun(drawn); widest < 200 {
		t.Errorf("the widest part of a bar is %d pixels", widest)
	}
	if keep := os.Getenv("VERNIER_SCREENSHOTS"); keep != "" {
		text, err := os.ReadFile(shot)
		if err == nil {
			err = os.WriteFile(filepath.Join(keep, "page.png"), text, 0o644)
		}
		must.Report(t, err)
	}
}

// widestRun is the longest row of pixels of one colour of the slices.
func widestRun(drawn image.Image) (widest int) {
	saturated := func(x, y int) (uint32, bool) {
		r, g, b, _ := drawn.At(x, y).RGBA()
		r, g, b = r>>8, g>>8, b>>8
		return r<<16 | g<<8 | b, max(r, g, b)-min(r, g, b) > 60
	}
	bounds := drawn.Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		run, last := 0, uint32(0)
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			colour, ours := saturated(x, y)
			if !ours || colour != last {
				run, last = 0, colour
			}
			if ours {
				run++
			}
			widest = max(widest, run)
		}
	}
	return widest
}
