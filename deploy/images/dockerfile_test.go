// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vernier.dev/vernier/test/must"
)

func TestParse(t *testing.T) {
	stages := must.Get(parse(`
FROM golang:1@sha256:`+strings.Repeat("0a", 32)+` AS build
RUN anything at all
FROM scratch AS common
LABEL a.b="c d" \
      e="f"
COPY LICENSE /licenses/
# a comment
FROM common AS part
LABEL e="g"
COPY --from=build /out/one \
                  /lib/two /opt/
USER 1:1
ENTRYPOINT ["/opt/one"]
FROM part AS part-arm64
COPY three /opt/
FROM part-${TARGETARCH} AS whole
`, "arm64"))(t)
	license := copied{source: "LICENSE", target: "/licenses/LICENSE"}
	part := []copied{license, {"/out/one", true, "/opt/one"}, {"/lib/two", true, "/opt/two"}}
	arm := append(slices.Clone(part), copied{source: "three", target: "/opt/three"})
	want := []*stage{
		{name: "common", labels: map[string]string{"a.b": "c d", "e": "f"}, copies: []copied{license}},
		{
			name: "part", labels: map[string]string{"a.b": "c d", "e": "g"}, user: "1:1", entrypoint: []string{"/opt/one"},
			copies: part,
		},
		{name: "part-arm64", labels: map[string]string{"a.b": "c d", "e": "g"}, user: "1:1", entrypoint: []string{"/opt/one"}, copies: arm},
		{name: "whole", labels: map[string]string{"a.b": "c d", "e": "g"}, user: "1:1", entrypoint: []string{"/opt/one"}, copies: arm},
	}
	if diff := cmp.Diff(want, stages, cmp.AllowUnexported(stage{}, copied{})); diff != "" {
		t.Error(diff)
	}
}

// What docker build would do and this program would not is refused.
func TestParseRefuses(t *testing.T) {
	for text, says := range map[string]string{
		"RUN true": "before any FROM",
		"FROM golang@sha256:" + strings.Repeat("0a", 32) + " AS build\nRUN true": "no stage after",
		"FROM golang:1.26 AS build\nFROM scratch AS part":                        "a tag can be moved: write IMAGE:TAG@sha256:DIGEST",
		"FROM golang:1.26@sha256:0a AS build\nFROM scratch AS part":              "a tag can be moved",
		"FROM debian AS part": "nothing here to download",
		"FROM scratch":        "FROM IMAGE AS NAME",
		"FROM scratch AS node-amd64\nFROM node-${TARGETPLATFORM} AS node": "FROM node-${TARGETPLATFORM}",
		"FROM scratch AS part\nRUN true":                                  "does not know",
		"FROM scratch AS part\nENV A=B":                                   "does not know",
		"FROM scratch AS part\nLABEL a=b":                                 `NAME="VALUE"`,
		"FROM scratch AS part\nENTRYPOINT /part":                          `["PROGRAM"]`,
		"FROM scratch AS part\nCOPY --chmod=755 a /":                      "COPY [--from=build]",
		"FROM scratch AS part\nCOPY --from=other /a /b/":                  "COPY [--from=build]",
		"FROM scratch AS part\nCOPY a /b":                                 "COPY [--from=build]",
		"FROM scratch AS part\nCOPY a":                                    "COPY [--from=build]",
	} {
		if _, err := parse(text, "amd64"); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
	}
}

// Everything that the Dockerfile downloads to build on is pinned by its digest.
func TestDockerfileIsPinned(t *testing.T) {
	text := must.Get(os.ReadFile("../../Dockerfile"))(t)
	if _, err := parse(string(text), "amd64"); err != nil {
		t.Error(err)
	}
}
