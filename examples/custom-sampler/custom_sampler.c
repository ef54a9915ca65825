/* Eta sampling (Hewitt et al., 2022), which the host does not have: the plugin reads each distribution and chooses the token itself.
 * The Rust form is `src/lib.rs`. */
#include "corral.h"

#include <math.h>
#include <string.h>

/* The most likely tokens among which to choose. */
#define CANDIDATES 256

/* Drops tokens that are unlikely by themselves and for a distribution of this entropy. Keeps the first. Returns how many remain. */
static size_t eta(corral_distribution *distribution, double epsilon) {
  double entropy = distribution->statistics.val.entropy, normalizer = distribution->statistics.val.log_normalizer;
  double least = fmin(epsilon, sqrt(epsilon) * exp(-entropy));
  corral_candidate *candidates = distribution->candidates.ptr;
  size_t kept = 1;
  for (size_t i = 1; i < distribution->candidates.len; i++)
    if (exp(candidates[i].logit - normalizer) >= least) candidates[kept++] = candidates[i];
  return kept;
}

void corral_handle(corral_request *request) {
  const corral_json *body = corral_body_json(request);
  corral_field_names(body, (const char *const[]){"prompt", "epsilon", "temperature", "seed", "max_tokens", NULL});
  const char *prompt = corral_field_string(body, "prompt", CORRAL_REQUIRED);
  double epsilon = corral_field_number(body, "epsilon", 0.002, 0, 1);
  double temperature = corral_field_number(body, "temperature", 1, 0, 1000);
  uint64_t random = (uint64_t)corral_field_integer(body, "seed", 0, 0, INT64_C(1) << 52);
  uint32_t max_tokens = (uint32_t)corral_field_integer(body, "max_tokens", 64, 0, INT32_MAX);

  corral_model *model = corral_model_open(NULL);
  corral_sequence *sequence = corral_sequence_new(model, prompt);
  uint32_t start = corral_length(sequence), requests = 0;
  size_t considered = 0;
  corral_distribution distribution = {0};
  corral_next_options top = {.top = CANDIDATES, .statistics = true};
  while (corral_length(sequence) - start < max_tokens && corral_next(sequence, top, &distribution)) {
    requests++;
    size_t kept = eta(&distribution, epsilon);
    considered += kept;
    corral_token token = corral_choose(distribution.candidates.ptr, kept, temperature, &random);
    if (corral_is_end(model, token)) break;
    corral_append_tokens(sequence, &token, 1);
  }
  const char *text = corral_detokenize(model, corral_tokens_from(sequence, start));
  corral_text out = {0};
  corral_print(&out, "{\"text\":");
  corral_print_string(&out, text, strlen(text));
  corral_print(&out, ",\"distributions\":%u,\"considered_tokens\":%zu}", requests, considered);
  corral_respond_json(&out);
}
