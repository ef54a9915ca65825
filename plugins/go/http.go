// Package corral is for plugins in Go. A plugin names its handler when it starts:
//
//	func main() {}
//
//	func init() { corral.Handle(shout) }
//
//	func shout(request *corral.Request) error {
//		prompt, err := request.Text()
//		…
//		return request.Respond(200, "text/plain; charset=utf-8", []byte(answer))
//	}
//
// An error that the handler returns is the response: an [Error] with its status, any other with 500. The bindings that
// `corral build` generates, in `corral/bindings`, have the rest of the interface.
package corral

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	http "corral/bindings/imports/wasi_http_types"
	streams "corral/bindings/imports/wasi_io_streams"
	"corral/wit/runtime"
	"corral/wit/types"
)

const (
	// Bytes of a body.
	bodyLimit = 1 << 20
	// The most that one call of the host takes.
	writeLimit = 4096
)

var handler = func(*Request) error { return Fail(500, "plugin-failed", "the plugin did not call corral.Handle") }

// Handle sets the function that answers requests. Call it in `init`: `main` does not run.
func Handle(function func(*Request) error) { handler = function }

// Request is a request and its response.
type Request struct {
	Method, Path, Query string
	host                *http.IncomingRequest
	out                 *http.ResponseOutparam
	body                *http.OutgoingBody
	// Nil before the response.
	stream *streams.OutputStream
	// Whether the response has events.
	hasEvents bool
}

// Header returns the value of a header; "" if it is not there.
func (r *Request) Header(name string) string {
	headers := r.host.Headers()
	defer headers.Drop()
	if values := end(headers.Get(strings.ToValidUTF8(name, ""))); len(values) > 0 {
		return string(values[0])
	}
	return ""
}

// Body reads the body, once. More than 1 MiB is 413.
func (r *Request) Body() ([]byte, error) {
	consumed := end(r.host.Consume())
	if consumed.IsErr() {
		return nil, Fail(500, "plugin-failed", "the plugin reads the body twice")
	}
	body := consumed.Ok()
	defer body.Drop()
	stream := end(body.Stream()).Ok()
	defer stream.Drop()
	var read []byte
	for {
		part := end(stream.BlockingRead(1 << 16))
		if part.IsErr() {
			return read, nil
		}
		read = append(read, part.Ok()...)
		if len(read) > bodyLimit {
			return nil, Fail(413, "body-too-large", "the body is larger than %d bytes", bodyLimit)
		}
	}
}

// Text reads the body; 400 if it is not UTF-8.
func (r *Request) Text() (string, error) {
	body, err := r.Body()
	if err == nil && !utf8.Valid(body) {
		err = Fail(400, "invalid-body", "the body is not text in UTF-8")
	}
	return string(body), err
}

// JSON reads the body into a struct; 400 if it does not fit, or has a field that the struct lacks.
func (r *Request) JSON(into any) error {
	body, err := r.Body()
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return Fail(400, "invalid-body", "the body is not the expected JSON: %v", err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return Fail(400, "invalid-body", "the body has more than a JSON value")
	}
	return nil
}

// Respond sends the whole response, with a status from 200 to 599.
func (r *Request) Respond(status int, contentType string, body []byte) error {
	if r.stream != nil {
		return Fail(500, "plugin-failed", "the plugin sends two responses")
	}
	if status < 200 || status > 599 {
		return Fail(500, "plugin-failed", "the status of the response is %d; expected 200 to 599", status)
	}
	r.start(status, contentType, 0)
	return r.send(body)
}

// RespondJSON sends a value.
func (r *Request) RespondJSON(value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return r.Respond(200, "application/json", body)
}

// All of these end a line of an event.
var lineBreaks = strings.NewReplacer("\r\n", "\n", "\r", "\n")

// Event sends a server-sent event, without a name if it is empty; the first one begins the response. It waits until the client
// has taken it, and fails after the client has disconnected, or after a whole response.
func (r *Request) Event(name, data string) error {
	if r.stream == nil {
		r.start(200, "text/event-stream", 0)
		r.hasEvents = true
	}
	if !r.hasEvents {
		return Fail(500, "plugin-failed", "the plugin sends an event after a whole response")
	}
	var event strings.Builder
	if name != "" {
		fmt.Fprintf(&event, "event: %s\n", name)
	}
	for line := range strings.SplitSeq(lineBreaks.Replace(data), "\n") {
		fmt.Fprintf(&event, "data: %s\n", line)
	}
	event.WriteByte('\n')
	return r.send([]byte(event.String()))
}

func (r *Request) start(status int, contentType string, retryAfter int) {
	fields := http.MakeFields()
	add := func(name, value string) {
		if end(fields.Append(name, []byte(value))).IsErr() {
			fmt.Fprintf(os.Stderr, "the header %s is not sent: its value is not allowed\n", name)
		}
	}
	add("content-type", contentType)
	if retryAfter > 0 {
		add("retry-after", strconv.Itoa(retryAfter))
	}
	response := http.MakeOutgoingResponse(fields)
	// The status is checked; the others do not fail the first time.
	response.SetStatusCode(uint16(status))
	r.body = response.Body().Ok()
	r.stream = r.body.Write().Ok()
	http.ResponseOutparamSet(r.out, types.Ok[*http.OutgoingResponse, http.ErrorCode](response))
	runtime.EndCall()
}

func (r *Request) send(data []byte) error {
	for len(data) > 0 {
		part := data[:min(len(data), writeLimit)]
		if end(r.stream.BlockingWriteAndFlush(part)).IsErr() {
			return Fail(499, "cancelled", "the client disconnected")
		}
		data = data[len(part):]
	}
	return nil
}

// fail sends problem details (RFC 9457): as the response, or after events as the last one, named `error`. After a whole
// response it sends nothing.
func (r *Request) fail(err error) {
	var known *Error
	if !errors.As(err, &known) {
		known = &Error{Status: 500, Code: "plugin-failed", Detail: err.Error()}
	}
	status := known.Status
	if status < 400 || status > 599 {
		fmt.Fprintf(os.Stderr, "an error has the status %d, so the client gets 500; expected 400 to 599\n", status)
		status = 500
	}
	if status >= 500 {
		fmt.Fprintln(os.Stderr, known.Detail)
	}
	problem, _ := json.Marshal(struct {
		Type   string `json:"type"`
		Status int    `json:"status"`
		Code   string `json:"code"`
		Detail string `json:"detail"`
	}{"about:blank", status, known.Code, known.Detail})
	// The client may be gone.
	if r.stream != nil {
		_ = r.Event("error", string(problem))
		return
	}
	r.start(status, "application/problem+json", known.RetryAfter)
	_ = r.send(problem)
}

// In the order of the interface.
var methods = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}

//go:wasmexport wasi:http/incoming-handler@0.2.12#handle
func handle(request, out int32) {
	r := &Request{host: http.IncomingRequestFromOwnHandle(request), out: http.ResponseOutparamFromOwnHandle(out)}
	if method := end(r.host.Method()); int(method.Tag()) < len(methods) {
		r.Method = methods[method.Tag()]
	} else {
		r.Method = method.Other()
	}
	target := end(r.host.PathWithQuery())
	r.Path, r.Query, _ = strings.Cut(target.Some(), "?")
	err := handler(r)
	if err == nil && r.stream == nil {
		err = Fail(500, "plugin-failed", "the plugin sent no response")
	}
	if err != nil {
		r.fail(err)
	}
	// In this order: the host refuses to drop what something else still refers to.
	r.stream.Drop()
	http.OutgoingBodyFinish(r.body, types.None[*http.Fields]())
	r.host.Drop()
}
