/* Samples several answers to one prompt and returns the one that the model finds most likely. The Rust form is `src/lib.rs`. */
#include "corral.h"

#include <math.h>
#include <stdlib.h>

#define MOST 64

typedef struct {
  corral_chunk chunk;
  double mean_logprob;
  size_t index;
} answer;

/* Likelier answers first; of equal ones the first. */
static int compare(const void *one, const void *other) {
  const answer *a = one, *b = other;
  if (a->mean_logprob != b->mean_logprob) return a->mean_logprob > b->mean_logprob ? -1 : 1;
  return a->index < b->index ? -1 : 1;
}

void corral_handle(corral_request *request) {
  const corral_json *body = corral_body_json(request);
  corral_field_names(body, (const char *const[]){"prompt", "n", "temperature", "seed", "max_tokens", "ignore_eos", NULL});
  const char *text = corral_field_string(body, "prompt", CORRAL_REQUIRED);
  size_t n = (size_t)corral_field_integer(body, "n", 8, 1, MOST);
  uint64_t seed = (uint64_t)corral_field_integer(body, "seed", 0, 0, INT64_C(1) << 52);
  corral_options options = {
      .max_tokens = (uint32_t)corral_field_integer(body, "max_tokens", 64, 0, INT32_MAX),
      .temperature = (float)corral_field_number(body, "temperature", 1, 0, 1000),
      .seed = &seed,
      .ignore_eos = corral_field_boolean(body, "ignore_eos", false),
      .logprobs = true,
  };
  corral_sequence *prompt = corral_sequence_new(corral_model_open(NULL), text);
  /* All generations start before the first is read, so that they share steps. They are forks of one sequence: the host computes
   * the prompt once. */
  corral_generation *generations[MOST];
  for (size_t i = 0; i < n; i++, seed++) generations[i] = corral_generate(corral_fork(prompt), options);
  answer answers[MOST];
  unsigned computed = 0;
  for (size_t i = 0; i < n; i++) {
    answers[i] = (answer){.chunk = corral_rest(generations[i]), .index = i};
    corral_outcome outcome = corral_outcome_of(generations[i]);
    if (corral_failed()) return;
    computed += outcome.prompt_tokens - outcome.cached_tokens;
    for (size_t k = 0; k < answers[i].chunk.logprobs.len; k++) answers[i].mean_logprob += answers[i].chunk.logprobs.ptr[k].logprob;
    answers[i].mean_logprob /= outcome.generated_tokens;
  }
  qsort(answers, n, sizeof *answers, compare);

  corral_text out = {0};
  corral_print(&out, "{\"text\":");
  corral_print_string(&out, answers[0].chunk.text.ptr, answers[0].chunk.text.len);
  corral_print(&out, ",\"prompt_tokens\":%u,\"prompt_tokens_computed\":%u,\"answers\":[", (unsigned)corral_length(prompt), computed);
  for (size_t i = 0; i < n; i++) {
    corral_print(&out, "%s{\"text\":", i ? "," : "");
    corral_print_string(&out, answers[i].chunk.text.ptr, answers[i].chunk.text.len);
    /* Adding 0 turns -0 into 0. */
    corral_print(&out, ",\"mean_logprob\":%.3f}", round(answers[i].mean_logprob * 1000) / 1000 + 0.0);
  }
  corral_print(&out, "]}");
  corral_respond_json(&out);
}
