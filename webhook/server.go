// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"vernier.dev/vernier/webhook/intake"
)

const (
	// requestTimeout bounds the TLS handshake, and then the reading and the answering of
	// each request; intake bounds bodies more closely.
	requestTimeout = 10 * time.Second
	// idleTimeout is how long the API server keeps a connection without a request.
	idleTimeout = 90 * time.Second
	// maxHeaderBytes: the API server sends a few hundred.
	maxHeaderBytes = 64 << 10
	// shutdownTimeout is how long requests that are under way may take at the end.
	shutdownTimeout = time.Minute
)

// server is controller-runtime's webhook server but for how it listens: that one takes in
// whatever comes, and has no place to say otherwise.
type server struct {
	ctrlwebhook.Server
	address string
	// certDir holds tls.crt and tls.key, unless certificate is set.
	certDir     string
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	intake      *intake.Intake
	listening   atomic.Bool
}

// Register serves a handler, within the limits of the intake.
func (s *server) Register(path string, hook http.Handler) {
	s.Server.Register(path, s.intake.Handle(hook))
}

// Start implements manager.Runnable.
func (s *server) Start(ctx context.Context) error {
	certificate := s.certificate
	if certificate == nil {
		watcher, err := certwatcher.New(filepath.Join(s.certDir, "tls.crt"), filepath.Join(s.certDir, "tls.key"))
		if err != nil {
			return err
		}
		watch, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if err := watcher.Start(watch); err != nil {
				log.FromContext(ctx).Error(err, "Cannot watch the certificate's files: a renewed one is not served")
			}
		}()
		defer func() { stop(); <-ended }()
		certificate = watcher.GetCertificate
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.address)
	if err != nil {
		return err
	}
	defer s.listening.Store(false)
	s.listening.Store(true)
	wait := shutdownTimeout
	return (&manager.Server{
		Name: "admission",
		Server: &http.Server{
			Handler: s.WebhookMux(), MaxHeaderBytes: maxHeaderBytes,
			ReadTimeout: requestTimeout, WriteTimeout: 2 * requestTimeout, IdleTimeout: idleTimeout,
		},
		// The API server itself asks for HTTP/1.1: with it, a connection is a request.
		Listener: tls.NewListener(s.intake.Listen(l), &tls.Config{
			MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: certificate}),
		ShutdownTimeout: &wait,
	}).Start(ctx)
}

// StartedChecker reports whether the server listens. It does not connect: a server that
// has all the connections that it takes answers those.
func (s *server) StartedChecker() healthz.Checker {
	return func(*http.Request) error {
		if !s.listening.Load() {
			return errors.New("the admission server does not listen yet")
		}
		return nil
	}
}
