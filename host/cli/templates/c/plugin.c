/* Completes the request's body with the deployment's model. */
#include "corral.h"

void corral_handle(corral_request *request) {
  corral_model *model = corral_model_open(NULL);
  corral_sequence *sequence = corral_sequence_new(model, corral_body(request));
  corral_generation *generation = corral_generate(sequence, (corral_options){.max_tokens = 64});
  corral_chunk answer = corral_rest(generation);
  corral_respond(200, "text/plain; charset=utf-8", answer.text.ptr, answer.text.len);
}
