// SPDX-License-Identifier: Apache-2.0

package handler_test

import (
	"context"
	"encoding/json"
	"testing"
)

// FuzzHandler: whatever arrives, the handler does not panic, what it refuses
// names a cause, and what it admits it patches cleanly, once.
func FuzzHandler(f *testing.F) {
	f.Add(realistic(f, true))
	f.Add(realistic(f, false))
	for _, seed := range []string{
		`{"metadata":{},"spec":{"containers":[{"name":"a","resources":{"limits":{"vernier.dev/gpu-core":30}}}]}}`,
		`{"metadata":{"annotations":null},"spec":{"schedulingGates":null,"containers":[null,{"resources":{"limits":{"vernier.dev/gpu-core":"1"}}}]}}`,
		`{"metadata":{"annotations":{"vernier.dev/shares":"{}"}},"spec":{"schedulingGates":[{"name":"vernier.dev/placement"}],` +
			`"initContainers":[{"env":[{"name":"NVIDIA_VISIBLE_DEVICES"},{},{"name":"NVIDIA_VISIBLE_DEVICES"}],` +
			`"resources":{"limits":{"vernier.dev/gpu-mem":"1"}}}]}}`,
		`{"metadata":{"annotations":{"required-plugins.noderesource.dev/container.~/":"[a]"}},` +
			`"spec":{"containers":[{"resources":{"requests":{"vernier.dev/gpu-mem":"1"},"limits":{"vernier.dev/gpu-mem":"1e3"}}}]}}`,
		`{"vernier.dev/":[`, `[]`, `"vernier.dev/"`, `{"metadata":{},"spec":{"resources":{"limits":{"vernier.dev/x":"1"}}}}`,
	} {
		f.Add([]byte(seed))
	}
	hook := ours()
	f.Fuzz(func(t *testing.T, raw []byte) {
		// As it comes: it must not panic, which the wrapper would hide as an
		// error.
		hook.Handler.Handle(context.Background(), request(raw))

		// As the API server would send it: decoded and encoded once, so that no
		// key is there twice.
		var object any
		if json.Unmarshal(raw, &object) != nil {
			return
		}
		raw = marshal(t, object)
		response := hook.Handle(context.Background(), request(raw))
		if !response.Allowed {
			if response.Result.Message == "" {
				t.Errorf("refused without a word: %s", raw)
			}
			return
		}
		patched := apply(t, raw, response)
		again := hook.Handle(context.Background(), request(patched))
		if !again.Allowed || len(again.Patch) > 0 {
			t.Errorf("a second round on %s says %v and patches %s", patched, again.Result, again.Patch)
		}
	})
}
