// SPDX-License-Identifier: Apache-2.0

package intake_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook/intake"
)

// patience bounds what is waited for; nothing here takes a hundredth of it.
const patience = time.Minute

// serve answers requests within the limits: with the body's length, once it has been read.
func serve(t *testing.T, limits intake.Limits) (address string) {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	in := intake.New(limits)
	srv := &http.Server{Handler: in.Handle(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, "the body did not arrive", http.StatusBadRequest)
			return
		}
		fmt.Fprint(w, len(body))
	}))}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(in.Listen(l)) }()
	t.Cleanup(func() {
		srv.Close()
		<-ended
	})
	return l.Addr().String()
}

// dial connects from an address of the loopback.
func dial(t *testing.T, from, to string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: patience}
	conn := must.Get(d.Dial("tcp", to))(t)
	t.Cleanup(func() { conn.Close() })
	must.Do(t, conn.SetDeadline(time.Now().Add(patience)))
	return conn
}

// begin sends the header of a request.
func begin(t *testing.T, conn net.Conn, header string) {
	t.Helper()
	must.Get(fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n", header))(t)
}

// status is the answer's.
func status(t *testing.T, conn net.Conn) int {
	t.Helper()
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	response.Body.Close()
	return response.StatusCode
}

// ask sends a whole request and returns the answer's status.
func ask(t *testing.T, conn net.Conn, size int) int {
	t.Helper()
	begin(t, conn, fmt.Sprintf("Content-Length: %d", size))
	must.Get(io.WriteString(conn, strings.Repeat("x", size)))(t)
	return status(t, conn)
}

// closed reports whether the server has closed the connection.
func closed(t *testing.T, conn net.Conn) bool {
	t.Helper()
	_, err := conn.Read(make([]byte, 1))
	return err != nil
}

var small = intake.Limits{ConnectionsPerSource: 3, Connections: 4, BytesPerSource: 10, Bytes: 15, MaxBytes: 10,
	MaxValues: 3, Answered: 2, ReadTimeout: patience}

func TestHostileConnections(t *testing.T) {
	address := serve(t, small)
	hold := func(from string) net.Conn {
		conn := dial(t, from, address)
		if got := ask(t, conn, 1); got != http.StatusOK {
			t.Fatalf("from %s: status %d", from, got)
		}
		return conn
	}
	first := hold("127.0.0.1")
	hold("127.0.0.1")
	hold("127.0.0.1")
	if !closed(t, dial(t, "127.0.0.1", address)) {
		t.Error("a source has one connection too many")
	}
	other := hold("127.0.0.2")
	if !closed(t, dial(t, "127.0.0.3", address)) {
		t.Error("there is one connection too many in all")
	}
	other.Close()
	first.Close()
	// What is closed is free again, once the server has seen it.
	await(t, func() bool {
		conn := dial(t, "127.0.0.1", address)
		fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx")
		return !closed(t, conn)
	})
}

// A source that announces bodies and never sends them keeps nobody else waiting.
func TestHostileBodiesThatNeverArrive(t *testing.T) {
	address := serve(t, small)
	begin(t, dial(t, "127.0.0.1", address), "Content-Length: 10")
	// Answered although the first has all that its source may have.
	if got := ask(t, dial(t, "127.0.0.2", address), 5); got != http.StatusOK {
		t.Errorf("another source: status %d", got)
	}
}

func TestHostileBodiesEnd(t *testing.T) {
	brief := small
	brief.ReadTimeout = 50 * time.Millisecond
	address := serve(t, brief)
	slow := dial(t, "127.0.0.1", address)
	begin(t, slow, "Content-Length: 10")
	if got := status(t, slow); got != http.StatusBadRequest {
		t.Errorf("a body that does not arrive: status %d", got)
	}
	// The room that it had is free again.
	if got := ask(t, dial(t, "127.0.0.1", address), 10); got != http.StatusOK {
		t.Errorf("after it: status %d", got)
	}
}

// What has no room is refused after as long as a body may take to arrive.
func TestHostileBytes(t *testing.T) {
	brief := small
	brief.ReadTimeout = time.Second
	hold := make(chan struct{})
	in := intake.New(brief)
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	arrived := make(chan struct{}, 9)
	srv := &http.Server{Handler: in.Handle(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-hold
	}))}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(in.Listen(l)) }()
	defer func() { close(hold); srv.Close(); <-ended }()
	address := l.Addr().String()
	for _, from := range []string{"127.0.0.1", "127.0.0.2"} {
		conn, size := dial(t, from, address), map[string]int{"127.0.0.1": 10, "127.0.0.2": 5}[from]
		begin(t, conn, fmt.Sprintf("Content-Length: %d", size))
		must.Get(io.WriteString(conn, strings.Repeat("x", size)))(t)
		<-arrived
	}
	for _, from := range []string{"127.0.0.1", "127.0.0.3"} {
		if got := ask(t, dial(t, from, address), 1); got != http.StatusTooManyRequests {
			t.Errorf("from %s: status %d, want 429", from, got)
		}
	}
}

func TestHostileLengths(t *testing.T) {
	address := serve(t, small)
	for header, want := range map[string]int{
		"Content-Length: 11":         http.StatusRequestEntityTooLarge,
		"Transfer-Encoding: chunked": http.StatusLengthRequired,
	} {
		conn := dial(t, "127.0.0.1", address)
		begin(t, conn, header)
		if got := status(t, conn); got != want {
			t.Errorf("%s: status %d, want %d", header, got, want)
		}
	}
}

func TestHostileValues(t *testing.T) {
	address := serve(t, small)
	for body, want := range map[string]int{
		`[1]`: http.StatusOK, `["[,\"{"]`: http.StatusOK, `[1,2,3]`: http.StatusRequestEntityTooLarge, `[{},{}]`: http.StatusRequestEntityTooLarge,
		`""""",,,,`: http.StatusOK, `[[[[`: http.StatusRequestEntityTooLarge,
	} {
		if len(body) > 10 {
			t.Fatalf("%s is too long", body)
		}
		conn := dial(t, "127.0.0.1", address)
		begin(t, conn, fmt.Sprintf("Content-Length: %d\r\nConnection: close", len(body)))
		must.Get(io.WriteString(conn, body))(t)
		if got := status(t, conn); got != want {
			t.Errorf("%s: status %d, want %d", body, got, want)
		}
		await(t, func() bool { return closed(t, conn) })
	}
}

// await polls until the condition holds.
func await(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); {
		if time.Now().After(deadline) {
			t.Fatal("never")
		}
	}
}
