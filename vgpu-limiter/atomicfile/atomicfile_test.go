// SPDX-License-Identifier: Apache-2.0

package atomicfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"vernier.dev/vernier/test/must"
)

// Who has the old file keeps it, and a failed write leaves it in place and
// nothing beside it.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	must.Do(t, Write(path, strings.NewReader("old"), 0o644))
	held := must.Get(os.Open(path))(t)
	defer held.Close()
	must.Do(t, Write(path, strings.NewReader("new"), 0o444))
	if text, err := io.ReadAll(held); err != nil || string(text) != "old" {
		t.Errorf("the old file reads %q, %v", text, err)
	}
	broken := io.MultiReader(strings.NewReader("half"), iotest.ErrReader(errors.New("disk full")))
	if err := Write(path, broken, 0o644); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("%v", err)
	}
	text, err := os.ReadFile(path)
	if err != nil || string(text) != "new" {
		t.Errorf("the file reads %q, %v", text, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o444 {
		t.Errorf("%v, %v", info, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("%d files, %v", len(entries), err)
	}
}
