/* Plugins for Corral in C. A plugin defines one function:
 *
 *     #include "corral.h"
 *
 *     void corral_handle(corral_request *request) {
 *       corral_sequence *sequence = corral_sequence_new(corral_model_open(NULL), corral_body(request));
 *       corral_chunk answer = corral_rest(corral_generate(sequence, (corral_options){.max_tokens = 64}));
 *       corral_respond(200, "text/plain; charset=utf-8", answer.text.ptr, answer.text.len);
 *     }
 *
 * Errors: the first one stays, and every later call does nothing and returns something empty, never NULL. So a plugin may check
 * with `corral_failed` at the end of a series of calls, or not at all: after `corral_handle` the client gets the error's status
 * and code. `corral_next` and `corral_read` return false after an error, which ends their loops.
 *
 * Memory: each request has an instance of its own, whose memory ends with it. Only what a loop makes is freed: a distribution
 * or chunk by the call that fills it again, a sequence by `corral_sequence_free`.
 *
 * Text is UTF-8 and ends with a NUL byte. What this header does not have is in the generated `handler_sync.h`. */
#ifndef CORRAL_H
#define CORRAL_H

#include "corral_json.h"
#include "handler_sync.h"

typedef corral_inference_types_token_t corral_token;
typedef corral_inference_inference_list_token_t corral_tokens;
typedef corral_inference_inference_candidate_t corral_candidate;
/* `candidates` (`ptr`, `len`), `logits`, `statistics` and `position`. */
typedef corral_inference_inference_distribution_t corral_distribution;
/* `text`, `tokens` and `logprobs`, each with `ptr` and `len`. */
typedef corral_inference_inference_chunk_t corral_chunk;
typedef corral_inference_inference_outcome_t corral_outcome;

#define CORRAL_CHECK __attribute__((warn_unused_result))

/* Errors. */

/* Ends the request with this status (400 to 599), code and detail, unless it has failed before. */
void corral_fail(int status, const char *code, const char *format, ...) __attribute__((format(printf, 3, 4)));
bool corral_failed(void);
/* The code of the error: of the host's `invalid`, `not-found`, `not-granted`, `context-full`, `refused`, `deadline`, `cancelled` or
 * `failed`; NULL without one. */
const char *corral_error_code(void);
/* Forgets the error: the plugin has handled it. */
void corral_clear_error(void);

/* Models. */

typedef struct {
  corral_inference_models_own_model_t handle;
  corral_inference_models_model_info_t info;
} corral_model;

/* Opens a model; the default one if `name` is NULL. */
corral_model *corral_model_open(const char *name);
/* Converts text to tokens. With `special`, control tokens such as <|im_start|> are read as such. */
corral_tokens corral_tokenize(const corral_model *model, const char *text, bool special);
/* Converts tokens to text; control tokens are left out. Incomplete characters are cut off. */
const char *corral_detokenize(const corral_model *model, corral_tokens tokens);
/* Whether the token ends a generation. */
bool corral_is_end(const corral_model *model, corral_token token);

/* Sequences: tokens, and the model's state for them. */

typedef struct {
  const corral_model *model;
  corral_inference_inference_own_sequence_t handle;
} corral_sequence;

/* Creates a sequence of a prompt, after the model's beginning-of-sequence token if it expects one. "" for an empty sequence. */
corral_sequence *corral_sequence_new(const corral_model *model, const char *prompt);
/* A sequence with the same tokens. Nothing is copied or computed again. */
corral_sequence *corral_fork(const corral_sequence *sequence);
void corral_sequence_free(corral_sequence *sequence);
void corral_append(corral_sequence *sequence, const char *text, bool special);
void corral_append_tokens(corral_sequence *sequence, const corral_token *tokens, size_t count);
void corral_truncate(corral_sequence *sequence, uint32_t length);
uint32_t corral_length(const corral_sequence *sequence);
/* The tokens from a position on. */
corral_tokens corral_tokens_from(const corral_sequence *sequence, uint32_t start);
/* Snapshots that stay beyond the request, if the deployment grants them. */
void corral_save(const corral_sequence *sequence, const char *name);
corral_sequence *corral_restore(const corral_model *model, const char *name);

/* Constraints on generated text. */

typedef corral_inference_constraints_own_constraint_t corral_constraint;
typedef enum { CORRAL_JSON_SCHEMA = 0, CORRAL_JSON_ANY = 1, CORRAL_REGEX = 2, CORRAL_LARK = 3, CORRAL_GBNF = 4 } corral_grammar;
corral_constraint *corral_compile(const corral_model *model, corral_grammar notation, const char *text);

/* Generations: the host runs the loop. */

/* Settings; those that are 0 have no effect. Without a sampler, always the most likely token is generated. */
typedef struct {
  uint32_t max_tokens;
  float temperature, top_p, min_p;
  uint32_t top_k;
  const uint64_t *seed;
  /* At most 16 texts, and NULL. */
  const char *const *stop;
  const corral_constraint *constraint;
  /* Goes on after tokens that end a generation, to `max_tokens`. */
  bool ignore_eos;
  /* The log probability of each token. */
  bool logprobs;
} corral_options;

typedef corral_inference_inference_sync_own_generation_t corral_generation;
/* Starts a generation. Start several before you read the first: then they share steps. */
corral_generation *corral_generate(const corral_sequence *sequence, corral_options options);
/* Waits for the next chunk; false at the end. `chunk` begins as {0}. */
CORRAL_CHECK bool corral_read(corral_generation *generation, corral_chunk *chunk);
/* Waits for the end, and returns the remaining output. */
corral_chunk corral_rest(corral_generation *generation);
/* Waits for the end: why it ended, and the number of tokens. Call it after the chunks: it tells whether the generation failed. */
corral_outcome corral_outcome_of(corral_generation *generation);

/* The plugin's own loop. */

/* What to return of a distribution: the `top` most likely tokens, or those of `only`. */
typedef struct {
  uint32_t top;
  corral_tokens only;
  bool statistics;
} corral_next_options;
/* Waits for the distribution of the next token. `distribution` begins as {0}. */
CORRAL_CHECK bool corral_next(const corral_sequence *sequence, corral_next_options options, corral_distribution *distribution);
/* The same for several sequences, at most 256, which share a step. */
CORRAL_CHECK bool corral_next_many(corral_sequence *const *sequences, size_t count, corral_next_options options,
                                   corral_distribution *distributions);
/* Draws a token of at least one candidate. Temperature 0 takes the first, which is the most likely one. `random` holds the state
 * of the generator, at first a seed. */
corral_token corral_choose(const corral_candidate *candidates, size_t count, double temperature, uint64_t *random);

/* HTTP. */

typedef struct {
  const char *method, *path, *query;
  exports_wasi_http_incoming_handler_own_incoming_request_t handle;
} corral_request;

/* Answers a request. The plugin defines it. */
void corral_handle(corral_request *request);
/* The value of a header; NULL if it is not there. */
const char *corral_header(const corral_request *request, const char *name);
/* The body, once. More than 1 MiB is 413; what is no text is 400. */
const char *corral_body(corral_request *request);
/* The body as a JSON object, once; 400 if it is none. */
const corral_json *corral_body_json(corral_request *request);
/* A value of the deployment's [configuration]; NULL if it is not there. */
const char *corral_configuration(const char *name);

/* Sends the whole response, with a status from 200 to 599. Only the first response counts. */
void corral_respond(int status, const char *content_type, const void *data, size_t length);
void corral_respond_json(const corral_text *text);
/* Sends a server-sent event; the first one begins the response. `name` may be NULL. Waits until the client has taken it; false
 * after the client has disconnected, or after a whole response. */
bool corral_event(const char *name, const char *data, size_t length);

#endif
