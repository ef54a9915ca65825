/* HTTP: the handler of WASI 0.2, requests and responses. */
#include "errors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of a body. */
#define BODY_LIMIT (1 << 20)
/* The most that one call of the host takes. */
#define WRITE_LIMIT 4096

/* The response of this instance. */
static struct {
  bool started, has_events, closed;
  wasi_http_types_own_response_outparam_t out;
  wasi_http_types_own_outgoing_body_t body;
  wasi_io_streams_own_output_stream_t stream;
} response;

/* Requests. */

const char *corral_header(const corral_request *request, const char *name) {
  if (!corral_is_utf8(name, strlen(name))) return NULL;
  wasi_http_types_own_headers_t headers =
      wasi_http_types_method_incoming_request_headers(wasi_http_types_borrow_incoming_request(request->handle));
  wasi_http_types_field_name_t key = {.ptr = (uint8_t *)name, .len = strlen(name)};
  wasi_http_types_list_field_value_t values;
  wasi_http_types_method_fields_get(wasi_http_types_borrow_fields(headers), &key, &values);
  wasi_http_types_fields_drop_own(headers);
  return values.len ? corral_copy(values.ptr[0].ptr, values.ptr[0].len) : NULL;
}

/* Reads the whole body, which may have NUL bytes. */
static corral_text read_body(corral_request *request) {
  corral_text read = {0};
  wasi_http_types_own_incoming_body_t body;
  wasi_io_streams_own_input_stream_t stream;
  if (!wasi_http_types_method_incoming_request_consume(wasi_http_types_borrow_incoming_request(request->handle), &body) ||
      !wasi_http_types_method_incoming_body_stream(wasi_http_types_borrow_incoming_body(body), &stream)) {
    corral_fail(500, "plugin-failed", "the plugin reads the body twice");
    return read;
  }
  handler_sync_list_u8_t part;
  wasi_io_streams_stream_error_t error;
  read.data = corral_allocate(1);
  while (wasi_io_streams_method_input_stream_blocking_read(wasi_io_streams_borrow_input_stream(stream), 1 << 16, &part, &error)) {
    char *grown = realloc(read.data, read.length + part.len + 1);
    if (!grown || read.length + part.len > BODY_LIMIT) {
      corral_fail(413, "body-too-large", "the body is larger than %d bytes", BODY_LIMIT);
      break;
    }
    memcpy(grown + read.length, part.ptr, part.len);
    read.data = grown;
    read.length += part.len;
    read.data[read.length] = 0;
    handler_sync_list_u8_free(&part);
  }
  wasi_io_streams_input_stream_drop_own(stream);
  return read;
}

const char *corral_body(corral_request *request) {
  if (corral_failed()) return "";
  corral_text body = read_body(request);
  if (corral_failed()) return "";
  if (strlen(body.data) == body.length && corral_is_utf8(body.data, body.length)) return body.data;
  corral_fail(400, "invalid-body", "the body is not text in UTF-8");
  return "";
}

const corral_json *corral_body_json(corral_request *request) {
  static const corral_json empty = {.type = CORRAL_OBJECT, .string = "", .source = ""};
  const char *error, *body = corral_body(request);
  if (corral_failed()) return &empty;
  size_t position;
  const corral_json *value = corral_parse(body, &error, &position);
  if (!value) corral_fail(400, "invalid-body", "the body is not JSON: %s at byte %zu", error, position);
  if (value && value->type != CORRAL_OBJECT) corral_fail(400, "invalid-body", "the body is not a JSON object");
  return corral_failed() ? &empty : value;
}

const char *corral_configuration(const char *name) {
  handler_sync_list_tuple2_string_string_t all;
  wasi_cli_environment_get_environment(&all);
  for (size_t i = 0; i < all.len; i++) {
    handler_sync_string_t key = all.ptr[i].f0, value = all.ptr[i].f1;
    if (key.len == strlen(name) && memcmp(key.ptr, name, key.len) == 0) return corral_copy(value.ptr, value.len);
  }
  return NULL;
}

/* Responses. */

static void add_header(wasi_http_types_own_fields_t fields, const char *name, const char *value) {
  wasi_http_types_field_name_t key = {.ptr = (uint8_t *)name, .len = strlen(name)};
  wasi_http_types_field_value_t bytes = {.ptr = (uint8_t *)value, .len = strlen(value)};
  wasi_http_types_header_error_t error;
  if (!wasi_http_types_method_fields_append(wasi_http_types_borrow_fields(fields), &key, &bytes, &error))
    fprintf(stderr, "the header %s is not sent: its value is not allowed\n", name);
}

static void start(int status, const char *content_type) {
  wasi_http_types_own_fields_t fields = wasi_http_types_constructor_fields();
  add_header(fields, "content-type", content_type);
  if (corral_current_error()->retry_after) {
    char seconds[16];
    snprintf(seconds, sizeof seconds, "%u", (unsigned)corral_current_error()->retry_after);
    add_header(fields, "retry-after", seconds);
  }
  wasi_http_types_own_outgoing_response_t made = wasi_http_types_constructor_outgoing_response(fields);
  wasi_http_types_borrow_outgoing_response_t borrowed = wasi_http_types_borrow_outgoing_response(made);
  /* The status is checked; the others do not fail the first time. */
  wasi_http_types_method_outgoing_response_set_status_code(borrowed, (wasi_http_types_status_code_t)status);
  wasi_http_types_method_outgoing_response_body(borrowed, &response.body);
  wasi_http_types_method_outgoing_body_write(wasi_http_types_borrow_outgoing_body(response.body), &response.stream);
  wasi_http_types_result_own_outgoing_response_error_code_t result = {.is_err = false, .val.ok = made};
  wasi_http_types_static_response_outparam_set(response.out, &result);
  response.started = true;
}

/* Waits until the client has taken the bytes; false after it has disconnected. */
static bool send_bytes(const void *data, size_t length) {
  for (size_t sent = 0; sent < length && !response.closed;) {
    size_t part = length - sent < WRITE_LIMIT ? length - sent : WRITE_LIMIT;
    handler_sync_list_u8_t bytes = {.ptr = (uint8_t *)data + sent, .len = part};
    wasi_io_streams_borrow_output_stream_t stream = wasi_io_streams_borrow_output_stream(response.stream);
    wasi_io_streams_stream_error_t error;
    response.closed = !wasi_io_streams_method_output_stream_blocking_write_and_flush(stream, &bytes, &error);
    sent += part;
  }
  return !response.closed;
}

void corral_respond(int status, const char *content_type, const void *data, size_t length) {
  if (corral_failed() || response.started) return;
  if (status < 200 || status > 599) {
    corral_fail(500, "plugin-failed", "the status of the response is %d; expected 200 to 599", status);
    return;
  }
  start(status, content_type);
  send_bytes(data, length);
}

void corral_respond_json(const corral_text *text) { corral_respond(200, "application/json", text->data, text->length); }

/* Sends an event also after an error. */
static bool send_event(const char *name, const char *data, size_t length) {
  corral_text event = {0};
  if (name) corral_print(&event, "event: %s\n", name);
  for (const char *end = data + length, *line = data;; line++) {
    const char *next = line;
    while (next < end && *next != '\n' && *next != '\r') next++;
    corral_print(&event, "data: %.*s\n", (int)(next - line), line);
    if (next == end) break;
    line = *next == '\r' && next + 1 < end && next[1] == '\n' ? next + 1 : next;
  }
  corral_print(&event, "\n");
  bool good = send_bytes(event.data, event.length);
  free(event.data);
  return good;
}

bool corral_event(const char *name, const char *data, size_t length) {
  if (corral_failed()) return false;
  if (!response.started) {
    start(200, "text/event-stream");
    response.has_events = true;
  }
  if (!response.has_events) {
    corral_fail(500, "plugin-failed", "the plugin sends an event after a whole response");
    return false;
  }
  if (send_event(name, data, length)) return true;
  corral_fail(499, "cancelled", "the client disconnected");
  return false;
}

/* The handler. */

static const char *method_name(const wasi_http_types_method_t *method) {
  static const char *const NAMES[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"};
  if (method->tag < sizeof NAMES / sizeof *NAMES) return NAMES[method->tag];
  return corral_copy(method->val.other.ptr, method->val.other.len);
}

void exports_wasi_http_incoming_handler_handle(exports_wasi_http_incoming_handler_own_incoming_request_t handle,
                                               exports_wasi_http_incoming_handler_own_response_outparam_t out) {
  corral_request request = {.handle = handle, .path = "/", .query = ""};
  wasi_http_types_borrow_incoming_request_t borrowed = wasi_http_types_borrow_incoming_request(handle);
  wasi_http_types_method_t method;
  wasi_http_types_method_incoming_request_method(borrowed, &method);
  request.method = method_name(&method);
  handler_sync_string_t target;
  if (wasi_http_types_method_incoming_request_path_with_query(borrowed, &target)) {
    char *path = (char *)corral_copy(target.ptr, target.len), *query = strchr(path, '?');
    if (query) *query++ = 0;
    request.path = path;
    request.query = query ? query : "";
  }
  response.out = out;
  corral_handle(&request);
  if (!corral_failed() && !response.started) corral_fail(500, "plugin-failed", "the plugin sent no response");
  if (corral_failed()) {
    corral_text problem = corral_problem();
    if (!response.started) {
      start(corral_current_error()->status, "application/problem+json");
      send_bytes(problem.data, problem.length);
    } else if (response.has_events) {
      send_event("error", problem.data, problem.length);
    }
  }
  wasi_io_streams_output_stream_drop_own(response.stream);
  wasi_http_types_error_code_t error;
  /* Fails if the client has disconnected. */
  wasi_http_types_static_outgoing_body_finish(response.body, NULL, &error);
}
