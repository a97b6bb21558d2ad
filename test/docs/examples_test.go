// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/must"
)

// Objects of the whole cluster are an administrator's to make. An example has them in files of their
// own, which say so, and its page says it too.
func TestExamplesNameTheAdministrator(t *testing.T) {
	folder := filepath.Join(must.Get(manifests.Root())(t), "docs/examples")
	clusterWide := []string{"PriorityClass", "GPUClass", "DeviceClass", "Namespace", "ClusterRole", "StorageClass", "PersistentVolume"}
	kinds, found := regexp.MustCompile(`(?m)^kind: (\w+)`), 0
	for _, file := range must.Get(filepath.Glob(filepath.Join(folder, "*/*.yaml")))(t) {
		text := string(must.Get(os.ReadFile(file))(t))
		wide, all := 0, kinds.FindAllStringSubmatch(text, -1)
		for _, kind := range all {
			if slices.Contains(clusterWide, kind[1]) {
				wide++
			}
		}
		if wide == 0 {
			continue
		}
		found++
		page := string(must.Get(os.ReadFile(filepath.Join(filepath.Dir(file), "README.md")))(t))
		if wide < len(all) || !strings.HasPrefix(text, "# An administrator applies this") || !strings.Contains(page, "administrator") {
			t.Errorf("%s has objects of the whole cluster: have them in a file of their own that begins with \"# An administrator applies this\", and name the administrator in its README.md", file)
		}
	}
	if found < 3 {
		t.Errorf("only %d files have objects of the whole cluster", found)
	}
}
