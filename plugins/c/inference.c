/* Models, sequences, generations and sampling: the interfaces `models`, `inference` and `inference-sync`. */
#include "errors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What calls return after an error. */
static corral_model no_model = {.info = {.name = {.ptr = (uint8_t *)""}}};
static corral_sequence no_sequence = {.model = &no_model};
static corral_generation no_generation;
static corral_constraint no_constraint;

static corral_inference_models_borrow_model_t model_of(const corral_model *model) {
  return corral_inference_models_borrow_model(model->handle);
}

static corral_inference_inference_borrow_sequence_t sequence_of(const corral_sequence *sequence) {
  return corral_inference_inference_borrow_sequence(sequence->handle);
}

/* Models. */

corral_model *corral_model_open(const char *name) {
  handler_sync_string_t text = corral_host_text(name ? name : "");
  if (corral_failed()) return &no_model;
  corral_inference_models_own_model_t handle;
  corral_inference_types_error_t error;
  if (!corral_host_call(corral_inference_inference_sync_open_model(name ? &text : NULL, &handle, &error), &error)) return &no_model;
  corral_model *model = corral_allocate(sizeof *model);
  model->handle = handle;
  corral_inference_models_method_model_info(model_of(model), &model->info);
  return model;
}

corral_tokens corral_tokenize(const corral_model *model, const char *text, bool special) {
  handler_sync_string_t input = corral_host_text(text);
  if (corral_failed()) return (corral_tokens){0};
  corral_inference_models_list_token_t found = {0};
  corral_inference_types_error_t error;
  corral_host_call(corral_inference_models_method_model_tokenize(model_of(model), &input, special, &found, &error), &error);
  return (corral_tokens){.ptr = found.ptr, .len = corral_failed() ? 0 : found.len};
}

const char *corral_detokenize(const corral_model *model, corral_tokens tokens) {
  if (corral_failed()) return "";
  corral_inference_models_list_token_t input = {.ptr = tokens.ptr, .len = tokens.len};
  handler_sync_list_u8_t bytes = {0};
  corral_inference_types_error_t error;
  bool good = corral_inference_models_method_model_detokenize(model_of(model), &input, false, &bytes, &error);
  if (!corral_host_call(good, &error)) return "";
  while (bytes.len && !corral_is_utf8(bytes.ptr, bytes.len)) bytes.len--;
  return corral_copy(bytes.ptr, bytes.len);
}

bool corral_is_end(const corral_model *model, corral_token token) {
  for (size_t i = 0; i < model->info.end_of_generation.len; i++)
    if (model->info.end_of_generation.ptr[i] == token) return true;
  return false;
}

/* Sequences. */

static corral_sequence *sequence_with(const corral_model *model, corral_inference_inference_own_sequence_t handle) {
  corral_sequence *sequence = corral_allocate(sizeof *sequence);
  *sequence = (corral_sequence){.model = model, .handle = handle};
  return sequence;
}

corral_sequence *corral_sequence_new(const corral_model *model, const char *prompt) {
  if (corral_failed()) return &no_sequence;
  corral_inference_inference_own_sequence_t handle;
  corral_inference_types_error_t error;
  if (!corral_host_call(corral_inference_inference_static_sequence_create(model_of(model), &handle, &error), &error))
    return &no_sequence;
  corral_sequence *sequence = sequence_with(model, handle);
  if (*prompt && model->info.bos.is_some) corral_append_tokens(sequence, &model->info.bos.val, 1);
  corral_append(sequence, prompt, false);
  return sequence;
}

corral_sequence *corral_fork(const corral_sequence *sequence) {
  if (corral_failed()) return &no_sequence;
  corral_inference_inference_own_sequence_t handle;
  corral_inference_types_error_t error;
  bool good = corral_inference_inference_method_sequence_fork(sequence_of(sequence), &handle, &error);
  return corral_host_call(good, &error) ? sequence_with(sequence->model, handle) : &no_sequence;
}

void corral_sequence_free(corral_sequence *sequence) {
  if (sequence == &no_sequence) return;
  corral_inference_inference_sequence_drop_own(sequence->handle);
  free(sequence);
}

void corral_append(corral_sequence *sequence, const char *text, bool special) {
  corral_tokens tokens = corral_tokenize(sequence->model, text, special);
  corral_append_tokens(sequence, tokens.ptr, tokens.len);
  if (tokens.len) free(tokens.ptr);
}

void corral_append_tokens(corral_sequence *sequence, const corral_token *tokens, size_t count) {
  if (corral_failed() || !count) return;
  corral_tokens list = {.ptr = (corral_token *)tokens, .len = count};
  corral_inference_types_error_t error;
  corral_host_call(corral_inference_inference_method_sequence_append(sequence_of(sequence), &list, &error), &error);
}

void corral_truncate(corral_sequence *sequence, uint32_t length) {
  if (corral_failed()) return;
  corral_inference_types_error_t error;
  corral_host_call(corral_inference_inference_method_sequence_truncate(sequence_of(sequence), length, &error), &error);
}

uint32_t corral_length(const corral_sequence *sequence) {
  return sequence == &no_sequence ? 0 : corral_inference_inference_method_sequence_length(sequence_of(sequence));
}

corral_tokens corral_tokens_from(const corral_sequence *sequence, uint32_t start) {
  corral_tokens tokens = {0};
  if (sequence != &no_sequence) corral_inference_inference_method_sequence_tokens(sequence_of(sequence), start, &tokens);
  return tokens;
}

void corral_save(const corral_sequence *sequence, const char *name) {
  handler_sync_string_t text = corral_host_text(name);
  if (corral_failed()) return;
  corral_inference_types_error_t error;
  corral_host_call(corral_inference_inference_sync_save_snapshot(sequence_of(sequence), &text, &error), &error);
}

corral_sequence *corral_restore(const corral_model *model, const char *name) {
  handler_sync_string_t text = corral_host_text(name);
  if (corral_failed()) return &no_sequence;
  corral_inference_inference_own_sequence_t handle;
  corral_inference_types_error_t error;
  bool good = corral_inference_inference_sync_restore_snapshot(model_of(model), &text, &handle, &error);
  return corral_host_call(good, &error) ? sequence_with(model, handle) : &no_sequence;
}

corral_constraint *corral_compile(const corral_model *model, corral_grammar notation, const char *text) {
  /* All notations with a text have it at one place. */
  corral_inference_constraints_grammar_t grammar = {.tag = (uint8_t)notation, .val.json_schema = corral_host_text(text)};
  if (corral_failed()) return &no_constraint;
  corral_constraint *constraint = corral_allocate(sizeof *constraint);
  corral_inference_types_error_t error;
  corral_host_call(corral_inference_inference_sync_compile_constraint(model_of(model), &grammar, constraint, &error), &error);
  return constraint;
}

/* Generations. */

static void set_options(corral_inference_inference_borrow_options_t host, corral_options options) {
  corral_inference_types_error_t error;
  /* The temperature comes first, as in OpenAI's API: filters apply to the tempered distribution. */
  if (options.temperature != 0)
    corral_host_call(corral_inference_inference_method_options_temperature(host, options.temperature, &error), &error);
  if (options.top_k) corral_host_call(corral_inference_inference_method_options_top_k(host, options.top_k, &error), &error);
  if (options.top_p != 0) corral_host_call(corral_inference_inference_method_options_top_p(host, options.top_p, &error), &error);
  if (options.min_p != 0) corral_host_call(corral_inference_inference_method_options_min_p(host, options.min_p, &error), &error);
  if (options.seed) corral_inference_inference_method_options_seed(host, *options.seed);
  if (options.ignore_eos) corral_inference_inference_method_options_ignore_eos(host);
  if (options.logprobs) corral_host_call(corral_inference_inference_method_options_logprobs(host, 0, &error), &error);
  for (const char *const *stop = options.stop; stop && *stop; stop++) {
    handler_sync_string_t text = corral_host_text(*stop);
    corral_host_call(corral_inference_inference_method_options_stop(host, &text, &error), &error);
  }
  if (options.constraint)
    corral_inference_inference_method_options_constrain(host, corral_inference_constraints_borrow_constraint(*options.constraint));
}

corral_generation *corral_generate(const corral_sequence *sequence, corral_options options) {
  if (corral_failed()) return &no_generation;
  corral_inference_inference_own_options_t own = corral_inference_inference_constructor_options(options.max_tokens);
  corral_inference_inference_borrow_options_t host = corral_inference_inference_borrow_options(own);
  set_options(host, options);
  corral_generation *generation = corral_allocate(sizeof *generation);
  corral_inference_types_error_t error;
  if (!corral_failed())
    corral_host_call(corral_inference_inference_sync_generate(sequence_of(sequence), host, generation, &error), &error);
  corral_inference_inference_options_drop_own(own);
  return generation;
}

bool corral_read(corral_generation *generation, corral_chunk *chunk) {
  if (corral_failed()) return false;
  corral_inference_inference_chunk_free(chunk);
  *chunk = (corral_chunk){0};
  corral_inference_inference_sync_borrow_generation_t host = corral_inference_inference_sync_borrow_generation(*generation);
  if (corral_inference_inference_sync_method_generation_read(host, chunk)) return true;
  /* The end of the chunks does not tell whether the generation failed. */
  corral_outcome_of(generation);
  return false;
}

corral_chunk corral_rest(corral_generation *generation) {
  corral_chunk chunk = {.text = {.ptr = (uint8_t *)""}};
  if (corral_failed()) return chunk;
  corral_inference_inference_sync_borrow_generation_t host = corral_inference_inference_sync_borrow_generation(*generation);
  corral_inference_inference_sync_method_generation_collect(host, &chunk);
  corral_outcome_of(generation);
  return chunk;
}

corral_outcome corral_outcome_of(corral_generation *generation) {
  corral_outcome outcome = {0};
  if (corral_failed()) return outcome;
  corral_inference_types_error_t error;
  corral_inference_inference_sync_borrow_generation_t host = corral_inference_inference_sync_borrow_generation(*generation);
  corral_host_call(corral_inference_inference_sync_method_generation_outcome(host, &outcome, &error), &error);
  return outcome;
}

/* The plugin's own loop. */

static corral_inference_inference_next_token_request_t request_of(corral_next_options options) {
  corral_inference_inference_next_token_request_t request = {.statistics = options.statistics};
  request.part.tag = CORRAL_INFERENCE_INFERENCE_DISTRIBUTION_PART_TOP;
  request.part.val.top = options.top;
  if (options.only.len) {
    request.part.tag = CORRAL_INFERENCE_INFERENCE_DISTRIBUTION_PART_ONLY;
    request.part.val.only = options.only;
  }
  return request;
}

bool corral_next(const corral_sequence *sequence, corral_next_options options, corral_distribution *distribution) {
  if (corral_failed()) return false;
  corral_inference_inference_distribution_free(distribution);
  *distribution = (corral_distribution){0};
  corral_inference_inference_next_token_request_t request = request_of(options);
  corral_inference_types_error_t error;
  return corral_host_call(corral_inference_inference_sync_next(sequence_of(sequence), &request, distribution, &error), &error);
}

bool corral_next_many(corral_sequence *const *sequences, size_t count, corral_next_options options, corral_distribution *distributions) {
  if (corral_failed()) return false;
  corral_inference_inference_sync_list_tuple2_borrow_sequence_next_token_request_t requests = {.len = count};
  requests.ptr = corral_allocate(count * sizeof *requests.ptr);
  for (size_t i = 0; i < count; i++) {
    requests.ptr[i].f0 = sequence_of(sequences[i]);
    requests.ptr[i].f1 = request_of(options);
  }
  corral_inference_inference_sync_list_result_distribution_error_t results;
  corral_inference_inference_sync_next_many(&requests, &results);
  free(requests.ptr);
  for (size_t i = 0; i < results.len; i++) {
    corral_inference_inference_distribution_free(&distributions[i]);
    distributions[i] = (corral_distribution){0};
    if (corral_host_call(!results.ptr[i].is_err, &results.ptr[i].val.err)) distributions[i] = results.ptr[i].val.ok;
  }
  free(results.ptr);
  return !corral_failed();
}

/* SplitMix64 (Steele, Lea and Flood, 2014): a number from 0 to 1. */
static double draw(uint64_t *state) {
  uint64_t mixed = *state += 0x9e3779b97f4a7c15;
  mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
  return (double)((mixed ^ mixed >> 31) >> 11) / 9007199254740992.0;
}

corral_token corral_choose(const corral_candidate *candidates, size_t count, double temperature, uint64_t *random) {
  if (temperature <= 0) return candidates[0].token;
  double total = 0, most = candidates[0].logit;
  for (size_t i = 1; i < count; i++) most = fmax(most, candidates[i].logit);
  for (size_t i = 0; i < count; i++) total += exp((candidates[i].logit - most) / temperature);
  double left = draw(random) * total;
  for (size_t i = 0; i + 1 < count; i++) {
    left -= exp((candidates[i].logit - most) / temperature);
    if (left < 0) return candidates[i].token;
  }
  return candidates[count - 1].token;
}
