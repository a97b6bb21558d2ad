// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	kubernetes "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	restfake "k8s.io/client-go/rest/fake"

	"vernier.dev/vernier/api/cause"
)

// Events is an API server for lists of events. list gives those of a namespace, or of all if it is
// empty; the fields are selected here.
func Events(list func(ctx context.Context, namespace string) ([]corev1.Event, error)) rest.Interface {
	return API(func(r *http.Request) (*http.Response, error) {
		namespace, found := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/")
		if namespace, _, _ = strings.Cut(namespace, "/"); !found {
			namespace = ""
		}
		which, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
		if err != nil {
			return nil, err
		}
		all, err := list(r.Context(), namespace)
		answer, code := any(&corev1.EventList{Items: selected(all, which)}), http.StatusOK
		if status := apierrors.APIStatus(nil); errors.As(err, &status) {
			of := status.Status()
			answer, code = &of, int(of.Code)
		} else if err != nil {
			return nil, err
		}
		text, err := json.Marshal(answer)
		return Answer(code, bytes.NewReader(text)), err
	})
}

func selected(all []corev1.Event, which fields.Selector) []corev1.Event {
	found := []corev1.Event{}
	for i := range all {
		source := all[i].Source.Component
		if source == "" {
			source = all[i].ReportingController
		}
		if which.Matches(fields.Set{"source": source, "involvedObject.kind": all[i].InvolvedObject.Kind, "involvedObject.name": all[i].InvolvedObject.Name, "reason": all[i].Reason, "type": all[i].Type}) {
			found = append(found, all[i])
		}
	}
	return found
}

// API is an API server of the core group that answers so.
func API(answer func(*http.Request) (*http.Response, error)) rest.Interface {
	return &restfake.RESTClient{
		GroupVersion: corev1.SchemeGroupVersion, VersionedAPIPath: "/api/v1", NegotiatedSerializer: kubernetes.Codecs.WithoutConversion(),
		Client: restfake.CreateHTTPClient(answer),
	}
}

// Answer is an API server's.
func Answer(code int, body io.Reader) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(body)}
}

// EventText is an event as record.FakeRecorder has it, without its annotations.
func EventText(sent string) string {
	text, _, _ := strings.Cut(sent, " map["+cause.Annotation)
	return text
}
