// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"tags.cncf.io/container-device-interface/specs-go"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/vgpu-limiter/atomicfile"
)

// file is the spec's name: vendor and class, as the CDI library would name it.
const file = v1alpha1.CDIVendor + "-" + v1alpha1.CDIClass + ".json"

// save puts the spec into the directory, if it differs from what is there. The
// runtime reads the directory whenever it changes, so the file appears whole by
// a rename, under a name that is no spec's before.
func (w *Writer) save(spec *specs.Spec) error {
	text, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(w.options.Dir, file)
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
		return nil
	}
	if err := os.MkdirAll(w.options.Dir, 0o755); err != nil {
		return fmt.Errorf("creating the CDI directory: %w", err)
	}
	if err := atomicfile.Write(path, bytes.NewReader(text), 0o644); err != nil {
		return fmt.Errorf("writing the CDI spec: %w", err)
	}
	return nil
}
