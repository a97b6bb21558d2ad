// SPDX-License-Identifier: Apache-2.0

// Package intake owns how much the admission server takes in at once: connections, and
// bytes of requests, of one source address and of all together. The server answers
// every client that reaches its port, and not every cluster enforces a NetworkPolicy: without
// bounds any client could fill its memory.
//
// It counts what a request has, and never decodes it.
package intake

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// Limits of an admission server. API servers are few sources, often one address for all
// of them: a source may have most of what there is.
type Limits struct {
	// Connections that are open at once, from one address and in all.
	ConnectionsPerSource, Connections int
	// Bytes of request bodies that are being read and answered at once, from one address
	// and in all.
	BytesPerSource, Bytes int64
	// MaxBytes of one body: the API server's own limit of 3 MiB for an object, written as
	// JSON inside of a review.
	MaxBytes int64
	// MaxValues of one body: three bytes, "{},", may be decoded into a hundred.
	MaxValues int
	// Answered are the requests that are decoded and answered at once.
	Answered int64
	// ReadTimeout bounds the reading of one body.
	ReadTimeout time.Duration
}

// Default fits the memory that the chart gives the webhook, 256 MiB.
var Default = Limits{
	ConnectionsPerSource: 256, Connections: 512,
	BytesPerSource: 16 << 20, Bytes: 24 << 20, MaxBytes: 7 << 20,
	MaxValues: 64 << 10, Answered: 4,
	ReadTimeout: 2 * time.Second,
}

// Intake counts what the server has taken in.
type Intake struct {
	limits   Limits
	bytes    *semaphore.Weighted
	answered *semaphore.Weighted

	mu      sync.Mutex
	open    int
	sources map[string]*source
}

// source is an address with open connections. It is forgotten with the last of them, so
// there are never more than connections.
type source struct {
	open  int
	bytes *semaphore.Weighted
}

// New is an intake that has taken in nothing.
func New(limits Limits) *Intake {
	return &Intake{limits: limits, bytes: semaphore.NewWeighted(limits.Bytes), answered: semaphore.NewWeighted(limits.Answered),
		sources: map[string]*source{}}
}

// Listen accepts connections within the limits, and closes others at once.
func (i *Intake) Listen(l net.Listener) net.Listener { return &listener{Listener: l, intake: i} }

type listener struct {
	net.Listener
	intake *Intake
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		address := host(conn.RemoteAddr().String())
		if l.intake.opened(address) {
			return &connection{Conn: conn, closed: sync.OnceFunc(func() { l.intake.closed(address) })}, nil
		}
		conn.Close()
	}
}

type connection struct {
	net.Conn
	closed func()
}

func (c *connection) Close() error {
	c.closed()
	return c.Conn.Close()
}

func (i *Intake) opened(address string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	from := i.sources[address]
	if from == nil {
		from = &source{bytes: semaphore.NewWeighted(i.limits.BytesPerSource)}
	}
	if i.open == i.limits.Connections || from.open == i.limits.ConnectionsPerSource {
		return false
	}
	i.open++
	from.open++
	i.sources[address] = from
	return true
}

func (i *Intake) closed(address string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.open--
	if from := i.sources[address]; from.open > 1 {
		from.open--
	} else {
		delete(i.sources, address)
	}
}

// Handle has next answer requests of a bounded size, that have arrived in a bounded time,
// while there is room for them. Others wait for as long as they may take to arrive.
func (i *Intake) Handle(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch size := r.ContentLength; {
		case size < 0:
			refuse(w, http.StatusLengthRequired, "send the length of the body: the API server does")
		case size > i.limits.MaxBytes:
			refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the review has %d bytes, %d are allowed", size, i.limits.MaxBytes))
		default:
			release, ok := i.take(r.Context(), host(r.RemoteAddr), size)
			if !ok {
				refuse(w, http.StatusTooManyRequests, "too many reviews at once: try again")
				return
			}
			defer release()
			i.answer(w, r, next)
		}
	})
}

// answer reads the body of a request that there is room for, and has it answered.
func (i *Intake) answer(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(i.limits.ReadTimeout)); err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	body := make([]byte, r.ContentLength)
	if _, err := io.ReadFull(r.Body, body); err != nil {
		refuse(w, http.StatusBadRequest, "the body did not arrive: "+err.Error())
		return
	}
	if n := values(body); n > i.limits.MaxValues {
		refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the review has %d values, %d are allowed: make several pods of it", n, i.limits.MaxValues))
		return
	}
	if i.answered.Acquire(r.Context(), 1) != nil {
		return // who asked has gone
	}
	defer i.answered.Release(1)
	r.Body = io.NopCloser(bytes.NewReader(body))
	next.ServeHTTP(w, r)
}

// values counts the values of a JSON text, give or take the empty lists and objects: each
// but the first of a list or an object has a comma before it.
func values(text []byte) int {
	count, quoted := 1, false
	for at := 0; at < len(text); at++ {
		switch c := text[at]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			at++
		case !quoted && (c == ',' || c == '[' || c == '{'):
			count++
		}
	}
	return count
}

// take waits for room for a body, from its source first: one source keeps no other
// waiting for what it may not have itself.
func (i *Intake) take(ctx context.Context, address string, size int64) (release func(), ok bool) {
	ctx, cancel := context.WithTimeout(ctx, i.limits.ReadTimeout)
	defer cancel()
	i.mu.Lock()
	from := i.sources[address]
	i.mu.Unlock()
	if from == nil || from.bytes.Acquire(ctx, size) != nil {
		return nil, false
	}
	if i.bytes.Acquire(ctx, size) != nil {
		from.bytes.Release(size)
		return nil, false
	}
	return func() {
		i.bytes.Release(size)
		from.bytes.Release(size)
	}, true
}

// refuse answers without reading the body, and closes the connection: what would follow
// is the body.
func refuse(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Connection", "close")
	http.Error(w, text, code)
}

// host is the address without the port.
func host(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}
