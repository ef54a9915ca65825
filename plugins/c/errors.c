/* The error of a request: the first one stays. */
#include "errors.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static corral_error current;

const corral_error *corral_current_error(void) { return &current; }
bool corral_failed(void) { return current.status != 0; }
const char *corral_error_code(void) { return current.status ? current.code : NULL; }
void corral_clear_error(void) { current = (corral_error){0}; }

void corral_fail(int status, const char *code, const char *format, ...) {
  if (current.status) return;
  bool valid = status >= 400 && status <= 599;
  if (!valid) fprintf(stderr, "corral_fail has the status %d, so the client gets 500; expected 400 to 599\n", status);
  current.status = valid ? status : 500;
  snprintf(current.code, sizeof current.code, "%s", code);
  va_list arguments;
  va_start(arguments, format);
  char detail[1024];
  vsnprintf(detail, sizeof detail, format, arguments);
  va_end(arguments);
  /* Cut off between characters. */
  size_t length = strlen(detail);
  while (!corral_is_utf8(detail, length)) length--;
  corral_print(&current.detail, "%.*s", (int)length, detail);
  if (current.status >= 500) fprintf(stderr, "%s\n", current.detail.data);
}

static void fail_as(int status, const char *code, handler_sync_string_t text) {
  corral_fail(status, code, "%.*s", (int)text.len, (const char *)text.ptr);
}

bool corral_host_call(bool good, const corral_inference_types_error_t *error) {
  if (good) return true;
  switch (error->tag) {
    case CORRAL_INFERENCE_TYPES_ERROR_INVALID: fail_as(400, "invalid", error->val.invalid); break;
    case CORRAL_INFERENCE_TYPES_ERROR_NOT_FOUND: fail_as(404, "not-found", error->val.not_found); break;
    case CORRAL_INFERENCE_TYPES_ERROR_NOT_GRANTED: fail_as(403, "not-granted", error->val.not_granted); break;
    case CORRAL_INFERENCE_TYPES_ERROR_CONTEXT_FULL:
      corral_fail(400, "context-full", "the call needs %u positions; a sequence may have %u",
                  (unsigned)error->val.context_full.needed, (unsigned)error->val.context_full.limit);
      break;
    case CORRAL_INFERENCE_TYPES_ERROR_REFUSED:
      fail_as(429, "refused", error->val.refused.reason);
      current.retry_after = (error->val.refused.retry_after_ms + 999) / 1000;
      if (!current.retry_after) current.retry_after = 1;
      break;
    case CORRAL_INFERENCE_TYPES_ERROR_DEADLINE: corral_fail(504, "deadline", "the request's deadline passed"); break;
    case CORRAL_INFERENCE_TYPES_ERROR_CANCELLED: corral_fail(499, "cancelled", "the request was canceled"); break;
    default: fail_as(500, "failed", error->val.failed);
  }
  return false;
}

handler_sync_string_t corral_host_text(const char *text) {
  size_t length = strlen(text);
  if (!corral_is_utf8(text, length)) {
    corral_fail(400, "invalid", "a text is not UTF-8");
    length = 0;
  }
  return (handler_sync_string_t){.ptr = (uint8_t *)text, .len = length};
}

const char *corral_copy(const void *bytes, size_t length) {
  char *copy = corral_allocate(length + 1);
  if (length) memcpy(copy, bytes, length);
  return copy;
}

corral_text corral_problem(void) {
  corral_text text = {0};
  corral_print(&text, "{\"type\":\"about:blank\",\"status\":%d,\"code\":", current.status);
  corral_print_string(&text, current.code, strlen(current.code));
  corral_print(&text, ",\"detail\":");
  corral_print_string(&text, current.detail.data, current.detail.length);
  corral_print(&text, "}");
  return text;
}
