// A handler of the world `handler-sync` over the bindings of wit-bindgen: continues the request's body.
#include "handler_sync_cpp.h"

namespace inference = corral::inference::inference;
namespace sync = corral::inference::inference_sync;
using corral::inference::types::Error;

static std::string read(const wasi::http::types::IncomingRequest &request) {
  auto body = request.Consume().value();
  auto stream = body.Stream().value();
  std::string text;
  while (auto part = stream.BlockingRead(4096)) text.append(reinterpret_cast<const char *>(part->data()), part->size());
  return text;
}

static std::expected<std::string, Error> complete(std::string_view prompt) {
  auto model = sync::OpenModel(std::nullopt);
  if (!model) return std::unexpected(std::move(model.error()));
  auto tokens = model->Tokenize(prompt, false);
  if (!tokens) return std::unexpected(std::move(tokens.error()));
  auto sequence = inference::Sequence::Create(*model);
  if (!sequence) return std::unexpected(std::move(sequence.error()));
  auto appended = sequence->Append(tokens->get_const_view());
  if (!appended) return std::unexpected(std::move(appended.error()));
  inference::Options options(24);
  auto generation = sync::Generate(*sequence, options);
  if (!generation) return std::unexpected(std::move(generation.error()));
  std::string text = generation->Collect().text.to_string();
  auto outcome = generation->Outcome();
  if (!outcome) return std::unexpected(std::move(outcome.error()));
  return text;
}

void exports::wasi::http::incoming_handler::Handle(IncomingRequest &&request, ResponseOutparam &&out) {
  namespace http = ::wasi::http::types;
  auto answer = complete(read(request));
  http::OutgoingResponse response{http::Fields()};
  if (!answer) response.SetStatusCode(std::holds_alternative<Error::Invalid>(answer.error().variants) ? 400 : 500).value();
  auto body = response.Body().value();
  ResponseOutparam::Set(std::move(out), std::move(response));
  {
    auto stream = body.Write().value();
    auto text = answer.value_or("");
    // Fails only if the client is gone.
    (void)stream.BlockingWriteAndFlush({reinterpret_cast<const uint8_t *>(text.data()), text.size()});
  }
  (void)http::OutgoingBody::Finish(std::move(body), std::nullopt);
}
