/* Errors and text, between the files of the SDK. */
#ifndef CORRAL_ERRORS_H
#define CORRAL_ERRORS_H

#include "corral.h"

/* The error of the request; `status` is 0 without one. */
typedef struct {
  int status;
  char code[80];
  corral_text detail;
  /* Seconds until a retry can succeed; 0 if unknown. */
  uint32_t retry_after;
} corral_error;

const corral_error *corral_current_error(void);
/* Records an error of the host, unless the call was good. Returns whether it was. */
bool corral_host_call(bool good, const corral_inference_types_error_t *error);
/* Text for the host, which takes UTF-8 only: other bytes are an error. */
handler_sync_string_t corral_host_text(const char *text);
/* A copy with a NUL byte at its end. */
const char *corral_copy(const void *bytes, size_t length);
/* The problem details (RFC 9457) of the error. */
corral_text corral_problem(void);

#endif
