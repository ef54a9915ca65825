/* Works through a list of prompts and streams each answer as an event. */
#include "corral.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PROMPTS 10000
/* Prompts that are generated at once. The engine computes them in one batch. */
#define MAX_CONCURRENT 16

typedef struct {
  corral_sequence *sequence;
  corral_generation *generation;
  /* The code of its error; empty without one. */
  char error[32];
} task;

/* A prompt that fails does not stop the job. */
static void keep_error(task *task) {
  if (!corral_failed()) return;
  snprintf(task->error, sizeof task->error, "%s", corral_error_code());
  corral_clear_error();
}

static void start(task *task, const corral_model *model, const char *prompt, corral_options options) {
  *task->error = 0;
  task->sequence = corral_sequence_new(model, prompt);
  task->generation = corral_generate(task->sequence, options);
  keep_error(task);
}

/* Sends the answer; false after the client has disconnected. A plugin may hold 256 generations, so this one is dropped. */
static bool finish(task *task, size_t index) {
  corral_chunk answer = {0};
  if (!*task->error) {
    answer = corral_rest(task->generation);
    keep_error(task);
    corral_inference_inference_sync_generation_drop_own(*task->generation);
  }
  corral_sequence_free(task->sequence);
  corral_text event = {0};
  corral_print(&event, "{\"prompt\":%zu,\"%s\":", index, *task->error ? "error" : "text");
  if (*task->error) corral_print_string(&event, task->error, strlen(task->error));
  else corral_print_string(&event, answer.text.ptr, answer.text.len);
  corral_print(&event, "}");
  bool sent = corral_event(NULL, event.data, event.length);
  free(event.data);
  return sent;
}

void corral_handle(corral_request *request) {
  const corral_json *body = corral_body_json(request);
  corral_field_names(body, (const char *const[]){"prompts", "max_tokens", NULL});
  const corral_json *prompt = corral_field_array(body, "prompts", CORRAL_STRING, 1, MAX_PROMPTS)->items;
  corral_options options = {.max_tokens = (uint32_t)corral_field_integer(body, "max_tokens", 64, 0, INT32_MAX)};
  corral_model *model = corral_model_open(NULL);
  if (corral_failed()) return;
  task tasks[MAX_CONCURRENT];
  for (size_t first = 0, count; prompt; first += count) {
    for (count = 0; prompt && count < MAX_CONCURRENT; count++, prompt = prompt->next)
      start(&tasks[count], model, prompt->string, options);
    for (size_t i = 0; i < count; i++)
      if (!finish(&tasks[i], first + i)) return;
  }
}
