/* The workloads `none` and `top` of `src/lib.rs`, for `corral-bench languages`. */
#include "corral.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Candidates per token of `top`. */
#define TOP 64

static uint32_t top(const char *prompt, uint32_t count) {
  corral_sequence *sequence = corral_sequence_new(corral_model_open(NULL), prompt);
  uint32_t start = corral_length(sequence);
  corral_distribution distribution = {0};
  for (; count > 0 && corral_next(sequence, (corral_next_options){.top = TOP}, &distribution); count--)
    corral_append_tokens(sequence, &distribution.candidates.ptr[0].token, 1);
  return corral_length(sequence) - start;
}

void corral_handle(corral_request *request) {
  const char *workload = strrchr(request->path, '/'), *number = strchr(request->query, '=');
  uint32_t count = number ? (uint32_t)strtoul(number + 1, NULL, 10) : 0;
  const char *prompt = corral_body(request);
  uint32_t done = workload && strcmp(workload, "/none") == 0 ? count : top(prompt, count);
  char text[16];
  int length = snprintf(text, sizeof text, "%u", done);
  corral_respond(200, "text/plain; charset=utf-8", text, (size_t)length);
}
