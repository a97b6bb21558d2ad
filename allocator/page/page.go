// SPDX-License-Identifier: Apache-2.0

// Package page owns the page that an allocator serves to people. It shows the fleet as bars
// per GPU with slices by owner, the room between them, and the pods that wait.
//
// It reads and changes nothing. A user who may list ledgers may see it, and one who may get
// /metrics sees use beside it. The API server decides that; it keeps nobody's token.
package page

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"html/template"
	"net/http"
	"strings"

	"github.com/go-logr/logr"

	"vernier.dev/vernier/api/access"
)

var (
	//go:embed page.html
	markup string
	//go:embed style.css
	style string
	//go:embed script.js
	script string

	templates = template.Must(template.New("page").Parse(markup))

	// policy admits nothing from outside, and no script but the one that was built in.
	policy = "default-src 'none'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; " +
		"style-src 'unsafe-inline'; script-src '" + digest(script) + "'"
)

// Page answers requests for itself, and only for itself.
type Page struct {
	sources Sources
	access  Accesses
	log     logr.Logger
}

// Access reports whether the token's bearer may see something. The error says what to
// do about it; access.ErrAway that nobody can tell now.
type Access interface {
	Check(ctx context.Context, remote, token string) error
}

// Accesses are who may see the page, and who of them what containers use.
type Accesses struct{ Ledgers, Use Access }

// cookie holds the token in the browser, for this page only.
const cookie = "vernier-token"

// New is a page over the sources.
func New(sources Sources, access Accesses, log logr.Logger) *Page {
	return &Page{sources: sources, access: access, log: log}
}

// digest names an inline script as a Content-Security-Policy does.
func digest(script string) string {
	sum := sha256.Sum256([]byte(script))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// ServeHTTP answers / with the page, and /login with the form that takes a token.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for key, value := range map[string]string{
		"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff",
		"Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
		"Content-Type": "text/html; charset=utf-8",
	} {
		w.Header().Set(key, value)
	}
	switch {
	case r.URL.Path == "/" && r.Method == http.MethodGet:
		p.show(w, r)
	case r.URL.Path == "/login" && r.Method == http.MethodPost:
		p.logIn(w, r)
	case r.URL.Path == "/logout" && r.Method == http.MethodPost:
		http.SetCookie(w, p.cookie(r, "", -1))
		http.Redirect(w, r, "/", http.StatusSeeOther)
	default:
		http.Error(w, "there is only /", http.StatusNotFound)
	}
}

func (p *Page) cookie(r *http.Request, token string, maxAge int) *http.Cookie {
	return &http.Cookie{
		Name: cookie, Value: token, Path: "/", MaxAge: maxAge,
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil,
	}
}

// tokenOf is the bearer's token: a program's header or a browser's cookie.
func tokenOf(r *http.Request) string {
	if token := access.Bearer(r); token != "" {
		return token
	}
	if c, err := r.Cookie(cookie); err == nil {
		return c.Value
	}
	return ""
}

// maxToken bounds what is read of a form.
const maxToken = 16 << 10

// logIn puts a good token into the browser for as long as it is open.
func (p *Page) logIn(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxToken)
	token := strings.TrimSpace(r.PostFormValue("token"))
	if err := p.access.Ledgers.Check(r.Context(), r.RemoteAddr, token); err != nil {
		p.ask(w, r, err)
		return
	}
	http.SetCookie(w, p.cookie(r, token, 0))
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// ask answers with the form that takes a token, and with what was wrong with the
// last one.
func (p *Page) ask(w http.ResponseWriter, r *http.Request, wrong error) {
	status := http.StatusUnauthorized
	if errors.Is(wrong, access.ErrAway) {
		status = http.StatusServiceUnavailable
	}
	said := ""
	if wrong != nil {
		said = wrong.Error()
	}
	p.send(w, r, status, "login", map[string]any{"Style": template.CSS(style), "Wrong": said})
}

func (p *Page) show(w http.ResponseWriter, r *http.Request) {
	token := tokenOf(r)
	if token == "" {
		p.ask(w, r, nil)
		return
	}
	if err := p.access.Ledgers.Check(r.Context(), r.RemoteAddr, token); err != nil {
		p.ask(w, r, err)
		return
	}
	sees := p.access.Use.Check(r.Context(), r.RemoteAddr, token) == nil
	fleet, err := p.sources.read(r.Context(), choiceOf(r.URL.Query()), sees)
	if err != nil {
		p.log.Error(err, "The page cannot be shown")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	p.send(w, r, http.StatusOK, "whole", map[string]any{"Style": template.CSS(style), "Script": template.JS(script), "Fleet": fleet})
}

// send answers whole or not at all. The tag changes with the content, so that a
// reader who has it already is told just that.
func (p *Page) send(w http.ResponseWriter, r *http.Request, status int, name string, data any) {
	var text bytes.Buffer
	if err := templates.ExecuteTemplate(&text, name, data); err != nil {
		p.log.Error(err, "The page cannot be written")
		http.Error(w, "the page cannot be written", http.StatusInternalServerError)
		return
	}
	sum := sha256.Sum256(text.Bytes())
	tag := `"` + hex.EncodeToString(sum[:8]) + `"`
	w.Header().Set("ETag", tag)
	if status == http.StatusOK && r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body := text.Bytes()
	w.Header().Set("Vary", "Accept-Encoding")
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		// Thousands of GPUs are mostly the same words.
		var small bytes.Buffer
		z, err := gzip.NewWriterLevel(&small, gzip.BestSpeed)
		if err == nil {
			_, err = z.Write(body)
			err = errors.Join(err, z.Close())
		}
		if err == nil {
			w.Header().Set("Content-Encoding", "gzip")
			body = small.Bytes()
		}
	}
	w.WriteHeader(status)
	if _, err := w.Write(body); err != nil {
		p.log.V(1).Info("The reader is gone", "err", err)
	}
}
