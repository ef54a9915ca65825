/* Answers a chat in ChatML, the format of Qwen's models. For another model, change `prompt_of`. */
#include "corral.h"

#include <stdlib.h>

#define MAX_MESSAGES 1000

/* The messages, and the beginning of the answer. Control tokens stand only around a message, never inside. */
static corral_sequence *prompt_of(const corral_model *model, const corral_json *messages) {
  corral_sequence *sequence = corral_sequence_new(model, "");
  for (const corral_json *message = messages->items; message; message = message->next) {
    const char *role = corral_field_string(message, "role", CORRAL_REQUIRED);
    const char *content = corral_field_string(message, "content", CORRAL_REQUIRED);
    corral_text text = {0};
    corral_print(&text, "%s\n%s", role, content);
    corral_append(sequence, "<|im_start|>", true);
    corral_append(sequence, text.data, false);
    corral_append(sequence, "<|im_end|>", true);
    corral_append(sequence, "\n", false);
  }
  corral_append(sequence, "<|im_start|>", true);
  corral_append(sequence, "assistant\n", false);
  return sequence;
}

/* Writes {"text": …}. */
static corral_text object_of(const corral_chunk *chunk) {
  corral_text object = {0};
  corral_print(&object, "{\"text\":");
  corral_print_string(&object, chunk->text.ptr, chunk->text.len);
  corral_print(&object, "}");
  return object;
}

void corral_handle(corral_request *request) {
  const corral_json *body = corral_body_json(request);
  corral_field_names(body, (const char *const[]){"messages", "max_tokens", "stream", NULL});
  const corral_json *messages = corral_field_array(body, "messages", CORRAL_OBJECT, 1, MAX_MESSAGES);
  corral_options options = {.max_tokens = (uint32_t)corral_field_integer(body, "max_tokens", 256, 0, INT32_MAX)};
  bool stream = corral_field_boolean(body, "stream", false);
  corral_generation *generation = corral_generate(prompt_of(corral_model_open(NULL), messages), options);
  corral_chunk chunk = {0};
  if (!stream) {
    chunk = corral_rest(generation);
    corral_text answer = object_of(&chunk);
    corral_respond_json(&answer);
    return;
  }
  while (corral_read(generation, &chunk)) {
    corral_text event = object_of(&chunk);
    if (chunk.text.len) corral_event(NULL, event.data, event.length);
    free(event.data);
  }
  corral_text last = {0};
  corral_print(&last, "{\"generated_tokens\":%u}", (unsigned)corral_outcome_of(generation).generated_tokens);
  corral_event(NULL, last.data, last.length);
}
