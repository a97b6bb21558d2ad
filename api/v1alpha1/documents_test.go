// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

const (
	goodShares = `{"version":"v1alpha1","containers":{"prepare":{"gpus":1,"memMiB":20480},"train":{"gpus":2,"core":30,"memPercent":25}}}`
	goodPlaced = `{"version":"v1alpha1","node":"gpu-1","containers":{"train":{"mode":"limiter",` +
		`"devices":[{"uuid":"GPU-1","core":30,"memMiB":20480},{"uuid":"GPU-2","memMiB":1}]}}}`
)

func TestParseShares(t *testing.T) {
	doc := must.Get(ParseShares(goodShares))(t)
	want := &Shares{Version: Version, Containers: map[string]Share{
		"train":   {GPUs: 2, Core: 30, MemPercent: 25},
		"prepare": {GPUs: 1, MemMiB: 20480},
	}}
	if !reflect.DeepEqual(doc, want) {
		t.Errorf("got %+v", doc)
	}
	if text, err := doc.Encode(); text != goodShares || err != nil {
		t.Errorf("encoded %s, %v", text, err)
	}
}

func TestParsePlacement(t *testing.T) {
	doc := must.Get(ParsePlacement(goodPlaced))(t)
	want := &Placement{Version: Version, Node: "gpu-1", Containers: map[string]PlacedShare{
		"train": {Mode: ModeLimiter, Devices: []PlacedDevice{{UUID: "GPU-1", Core: 30, MemMiB: 20480}, {UUID: "GPU-2", MemMiB: 1}}},
	}}
	if !reflect.DeepEqual(doc, want) {
		t.Errorf("got %+v", doc)
	}
	if text, err := doc.Encode(); text != goodPlaced || err != nil {
		t.Errorf("encoded %s, %v", text, err)
	}
}

// A document that is not exactly one of ours is refused whole: half of a
// misread demand is a wrong demand.
func TestRefusesShares(t *testing.T) {
	share := func(s string) string { return `{"version":"v1alpha1","containers":{"train":` + s + `}}` }
	for text, part := range map[string]string{
		"":                                                "",
		"null":                                            "version",
		"[]":                                              "",
		"{}":                                              "version",
		`{"version":"v1alpha1"}`:                          "no containers",
		`{"version":"v1"}`:                                `"v1" is not supported`,
		goodShares + "x":                                  "",
		goodShares + goodShares:                           "",
		goodShares[:len(goodShares)-1]:                    "",
		`{"Version":"v1alpha1"}`:                          "Version",
		share(`null`):                                     "containers[train]",
		share(`{}`):                                       "gpus 0",
		share(`{"gpus":0,"core":1}`):                      "gpus 0",
		share(`{"gpus":33,"core":1}`):                     "gpus 33",
		share(`{"gpus":-1}`):                              "gpus -1",
		share(`{"gpus":1,"core":1}`):                      "exactly one of memPercent and memMiB",
		share(`{"gpus":1,"core":101}`):                    "core 101",
		share(`{"gpus":1,"core":-1}`):                     "core -1",
		share(`{"gpus":1.0,"core":1}`):                    "",
		share(`{"gpus":"1","core":1}`):                    "",
		share(`{"gpus":4294967297}`):                      "", // 1 when cut to 32 bits
		share(`{"gpus":1,"Core":1}`):                      "Core",
		share(`{"gpus":1,"memory":1}`):                    "memory",
		share(`{"gpus":1,"memMiB":-1}`):                   "memMiB -1",
		share(`{"gpus":1,"memPercent":101}`):              "memPercent 101",
		share(`{"gpus":1,"memPercent":-1}`):               "memPercent -1",
		share(`{"gpus":1,"memMiB":8796093022208}`):        "memMiB 8796093022208",
		share(`{"gpus":1,"memMiB":1,"memPercent":1}`):     "exactly one of",
		share(`{"gpus":1,"memMiB":1,"memMiB":2}`):         "duplicate",
		share(`{"gpus":1,"memMiB":1},"train":{"gpus":1}`): "duplicate",
		share(`{"gpus":1,"memMiB":1}` + strings.Repeat(" ", MaxDocumentBytes)): "bytes",
	} {
		doc, err := ParseShares(text)
		refused(t, text, doc != nil, err, AnnotationShares, part)
	}
}

func TestRefusesPlacement(t *testing.T) {
	place := func(s string) string {
		return `{"version":"v1alpha1","node":"gpu-1","containers":{"train":` + s + `}}`
	}
	device := func(s string) string { return place(`{"mode":"limiter","devices":[` + s + `]}`) }
	many := strings.Repeat(`{"uuid":"GPU-%","memMiB":1},`, MaxDevices+1)
	for text, part := range map[string]string{
		"":                             "",
		"{}":                           "version",
		goodPlaced + " {}":             "",
		`{"version":"v1alpha1"}`:       "no containers",
		goodPlaced[:len(goodPlaced)-1]: "",
		strings.Replace(goodPlaced, `"gpu-1"`, `""`, 1):                                   "node is empty",
		strings.Replace(goodPlaced, `"node"`, `"Node"`, 1):                                "Node",
		strings.Replace(goodPlaced, `"node":"gpu-1"`, `"node":"gpu-1","node":"gpu-2"`, 1): "duplicate",
		place(`{"mode":"auto","devices":[{"uuid":"GPU-1","memMiB":1}]}`):                  `mode "auto"`,
		place(`{"devices":[{"uuid":"GPU-1","memMiB":1}]}`):                                `mode ""`,
		device(``):                            "0 devices",
		device(strings.TrimSuffix(many, ",")): "33 devices",
		device(`{"memMiB":1}`):                "devices[0].uuid",
		device(`{"uuid":"GPU-1","memMiB":1},{"uuid":"GPU-1","memMiB":1}`): "devices[1].uuid",
		device(`{"uuid":"GPU-1"}`):                                        "devices[0].memMiB 0",
		device(`{"uuid":"GPU-1","memMiB":-1}`):                            "devices[0].memMiB -1",
		device(`{"uuid":"GPU-1","memMiB":8796093022208}`):                 "devices[0].memMiB",
		device(`{"uuid":"GPU-1","memMiB":1,"core":101}`):                  "devices[0].core 101",
		device(`{"uuid":"GPU-1","memMiB":1,"core":-1}`):                   "devices[0].core -1",
		device(`{"uuid":"GPU-1","memMiB":1,"memPercent":1}`):              "memPercent",
	} {
		doc, err := ParsePlacement(text)
		refused(t, text, doc != nil, err, AnnotationPlacement, part)
	}
}

// refused: an error names the annotation and the field.
func refused(t *testing.T, text string, doc bool, err error, annotation, part string) {
	t.Helper()
	if len(text) > 200 {
		text = text[:200] + "…"
	}
	switch {
	case err == nil:
		t.Errorf("accepted: %s", text)
	case doc:
		t.Errorf("a document beside an error: %s", text)
	case !strings.Contains(err.Error(), annotation) || !strings.Contains(err.Error(), part):
		t.Errorf("%s: error %q does not say %q and %q", text, err, annotation, part)
	}
}

// What cannot be read back is not written.
func TestEncodeRefuses(t *testing.T) {
	if text, err := (&Shares{Version: Version}).Encode(); err == nil || text != "" {
		t.Errorf("shares without containers: %q", text)
	}
	if text, err := (&Placement{Version: Version, Node: "n"}).Encode(); err == nil || text != "" {
		t.Errorf("placement without containers: %q", text)
	}
	big := &Shares{Version: Version, Containers: map[string]Share{}}
	for i := range MaxDocumentBytes / 32 {
		big.Containers[fmt.Sprintf("container-%d", i)] = Share{GPUs: 1, MemMiB: 1}
	}
	if text, err := big.Encode(); !errors.Is(err, ErrRange) || text != "" {
		t.Errorf("a document of %d bytes: %v", len(text), err)
	}
}

func TestShareMemory(t *testing.T) {
	for _, c := range []struct {
		share  Share
		device MiB
		want   MiB
	}{
		{Share{MemPercent: 25}, 81559, 20389},
		{Share{MemPercent: 100}, 81559, 81559},
		{Share{MemMiB: 20480}, 81559, 20480},
		{Share{MemMiB: 20480}, 15360, 20480}, // does not fit, and says so
		{Share{MemPercent: 1}, 99, 0},
	} {
		if got, err := c.share.Memory(c.device); got != c.want || err != nil {
			t.Errorf("%+v of %d MiB: %d, %v", c.share, c.device, got, err)
		}
	}
	if _, err := (Share{MemPercent: 101}).Memory(100); !errors.Is(err, ErrRange) {
		t.Errorf("101 percent: %v", err)
	}
}

func TestWhole(t *testing.T) {
	for share, want := range map[Share]bool{
		{Core: 100, MemPercent: 100}: true,
		{Core: 99, MemPercent: 100}:  false,
		{Core: 100, MemPercent: 99}:  false,
		{Core: 100, MemMiB: 81920}:   false,
		{MemPercent: 100}:            false,
	} {
		if share.Whole() != want {
			t.Errorf("%+v whole: %v", share, !want)
		}
	}
}

// Parsing never panics, and what it accepts is written back as a document that
// reads the same.

func FuzzParseShares(f *testing.F) {
	for _, seed := range []string{goodShares, "", "{}", "null", "[]", `{"version":"v1alpha1","containers":{"a":null}}`,
		`{"version":"v1alpha1","containers":{"a":{"gpus":1,"core":-0,"memPercent":100}}}`,
		`{"version":"v1alpha1","containers":{"<":{"gpus":16,"memMiB":8796093022207}}}`,
		`{"version":"v1alpha1","containers":{"a":{"gpus":1,"memMiB":1},"a":{"gpus":2,"memMiB":1}}}`,
		goodShares + goodShares} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		roundTrip(t, text, ParseShares, (*Shares).Encode)
	})
}

func FuzzParsePlacement(f *testing.F) {
	for _, seed := range []string{goodPlaced, "", "{}", "null", "[]", `{"version":"v1alpha1","node":"n","containers":{"a":null}}`,
		`{"version":"v1alpha1","node":"n","containers":{"a":{"mode":"exclusive","devices":[{"uuid":"x","core":100,"memMiB":8796093022207}]}}}`,
		`{"version":"v1alpha1","node":"n","containers":{"a":{"mode":"exclusive","devices":null}}}`,
		goodPlaced + goodPlaced} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		roundTrip(t, text, ParsePlacement, (*Placement).Encode)
	})
}

func roundTrip[T any](t *testing.T, text string, parse func(string) (*T, error), encode func(*T) (string, error)) {
	doc, err := parse(text)
	if err != nil {
		if doc != nil {
			t.Error("a document beside an error")
		}
		return
	}
	written, err := encode(doc)
	if errors.Is(err, ErrRange) && len(text) > MaxDocumentBytes/6 {
		return // escaping can make it six times as long
	}
	if err != nil {
		t.Fatalf("accepted %q and cannot write it: %v", text, err)
	}
	again, err := parse(written)
	if err != nil {
		t.Fatalf("accepted %q, wrote %q, refuses that: %v", text, written, err)
	}
	if !reflect.DeepEqual(doc, again) {
		t.Errorf("%q became %q: %+v, then %+v", text, written, doc, again)
	}
}
