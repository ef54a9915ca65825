/* What the examples do not use of the SDK: the last part of the path names it. */
#include "corral.h"

#include <stdlib.h>
#include <string.h>

static bool is(const char *one, const char *other) { return one && strcmp(one, other) == 0; }

static void respond_text(const char *text) { corral_respond(200, "text/plain", text, strlen(text)); }

static corral_generation *generate(const char *prompt) {
  return corral_generate(corral_sequence_new(corral_model_open(NULL), prompt), (corral_options){.max_tokens = 8});
}

/* Events of the text, and one with a name and two lines, which a carriage return separates. */
static void events(corral_request *request) {
  corral_generation *generation = generate(corral_body(request));
  corral_chunk chunk = {0};
  while (corral_read(generation, &chunk))
    if (chunk.text.len) corral_event(NULL, (const char *)chunk.text.ptr, chunk.text.len);
  corral_outcome outcome = corral_outcome_of(generation);
  corral_text text = {0};
  corral_print(&text, "%u tokens\rfinish %d", (unsigned)outcome.generated_tokens, outcome.finish);
  corral_event("end", text.data, text.length);
}

static void error_after_events(void) {
  corral_event(NULL, "first", 5);
  corral_fail(409, "over", "it is \"over\"");
  corral_event(NULL, "not sent", 8);
}

static void error_after_response(void) {
  corral_respond(200, "text/plain", "whole", 5);
  corral_fail(409, "over", "it is over");
}

/* Greedy sampling of two sequences at once, with a step back. */
static void many(corral_request *request) {
  corral_model *model = corral_model_open(NULL);
  const char *prompt = corral_body(request);
  corral_sequence *sequences[2] = {corral_sequence_new(model, prompt), corral_sequence_new(model, prompt)};
  uint32_t start = corral_length(sequences[0]);
  corral_append(sequences[0], "5", false);
  corral_truncate(sequences[0], start);
  corral_distribution distributions[2] = {{0}, {0}};
  uint64_t random = 1;
  for (int i = 0; i < 8 && corral_next_many(sequences, 2, (corral_next_options){.top = 2}, distributions); i++) {
    corral_token tokens[2];
    for (int k = 0; k < 2; k++) tokens[k] = corral_choose(distributions[k].candidates.ptr, distributions[k].candidates.len, 0, &random);
    if (tokens[0] != tokens[1]) corral_fail(500, "different", "the sequences differ");
    if (corral_is_end(model, tokens[0])) break;
    for (int k = 0; k < 2; k++) corral_append_tokens(sequences[k], &tokens[k], 1);
  }
  corral_tokens only = corral_tokens_from(sequences[1], start);
  corral_distribution one = {0};
  if (!corral_next(sequences[1], (corral_next_options){.only = only, .statistics = true}, &one)) return;
  if (one.candidates.len != only.len || !one.statistics.is_some) corral_fail(500, "different", "not the tokens of `only`");
  corral_sequence_free(sequences[0]);
  respond_text(corral_detokenize(model, only));
}

static void constrained(corral_request *request) {
  corral_model *model = corral_model_open(NULL);
  corral_constraint *constraint = corral_compile(model, CORRAL_REGEX, corral_body(request));
  corral_sequence *sequence = corral_sequence_new(model, "12+7=");
  uint64_t seed = 5;
  corral_options options = {
      .max_tokens = 8, .temperature = 2, .top_k = 50, .top_p = 0.9f, .min_p = 0.01f, .seed = &seed, .constraint = constraint};
  corral_chunk answer = corral_rest(corral_generate(sequence, options));
  corral_respond(200, "text/plain", answer.text.ptr, answer.text.len);
}

static void stopped(void) {
  corral_sequence *sequence = corral_sequence_new(corral_model_open(NULL), "12+7=");
  corral_options options = {.max_tokens = 8, .stop = (const char *const[]){"9", NULL}};
  corral_generation *generation = corral_generate(sequence, options);
  corral_chunk answer = corral_rest(generation);
  corral_text text = {0};
  corral_print(&text, "%.*s %d", (int)answer.text.len, (const char *)answer.text.ptr, corral_outcome_of(generation).finish);
  respond_text(corral_failed() ? "" : text.data);
}

/* A model that is not there is an error that the plugin handles; the calls after it do nothing. */
static void handled(void) {
  corral_model *model = corral_model_open("none");
  corral_sequence *sequence = corral_sequence_new(model, "12+7=");
  corral_append(corral_fork(sequence), "x", false);
  corral_rest(corral_generate(sequence, (corral_options){.max_tokens = 8}));
  corral_save(sequence, "name");
  corral_text text = {0};
  corral_print(&text, "%s %u", corral_error_code(), (unsigned)corral_length(sequence));
  corral_clear_error();
  respond_text(text.data);
}

static void request_parts(corral_request *request) {
  const char *header = corral_header(request, "x-name"), *none = corral_header(request, "x-none");
  corral_text text = {0};
  corral_print(&text, "%s %s ?%s %s %s %s", request->method, request->path, request->query, header ? header : "-",
               none ? none : "-", corral_configuration("tone"));
  respond_text(text.data);
}

void corral_handle(corral_request *request) {
  const char *name = strrchr(request->path, '/') + 1;
  if (is(name, "events")) return events(request);
  if (is(name, "error-after-events")) return error_after_events();
  if (is(name, "error-after-response")) return error_after_response();
  if (is(name, "many")) return many(request);
  if (is(name, "constrained")) return constrained(request);
  if (is(name, "stopped")) return stopped();
  if (is(name, "handled")) return handled();
  if (is(name, "parts")) return request_parts(request);
  if (is(name, "json")) return (void)corral_body_json(request);
  if (is(name, "missing-model")) return (void)corral_model_open("none");
  if (is(name, "empty")) return (void)corral_rest(generate(""));
  if (is(name, "long")) return (void)corral_rest(generate(corral_body(request)));
  if (is(name, "snapshot")) return corral_save(corral_sequence_new(corral_model_open(NULL), "x"), "name");
  if (is(name, "no-text")) return (void)corral_model_open("\xff");
  if (is(name, "no-status")) return corral_respond(99, "text/plain", "x", 1);
  if (is(name, "no-error-status")) return corral_fail(200, "odd", "it is an error with the status of a success");
  if (is(name, "conflict")) return corral_fail(409, "conflict", "it is there already");
}
