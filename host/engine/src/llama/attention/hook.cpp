// Puts Corral's attention before that of ggml's processor backend.
//
// ggml asks its "extra buffer types" for each operation whether they compute it, before it does so itself. That is
// meant for other layouts of weights; here is one without buffers that answers for one operation alone. What is not
// taken ggml computes as ever.
//
// These are ggml's internal declarations (ggml-cpu/traits.h and ggml-backend-impl.h) of the one version that Cargo.toml
// pins, written down again since its headers are not at hand: to be compared with every other version.

#include <cstddef>
#include <vector>

struct ggml_backend_device;
struct ggml_compute_params;
struct ggml_tensor;

struct ggml_backend_buffer_type {
    const char * (*get_name)(ggml_backend_buffer_type * type);
    void * others[7];
    ggml_backend_device * device;
    void * context;
};

extern "C" ggml_backend_device * ggml_backend_buft_get_device(ggml_backend_buffer_type * type);
std::vector<ggml_backend_buffer_type *> & ggml_backend_cpu_get_extra_buffer_types();

namespace ggml::cpu {
class tensor_traits {
  public:
    virtual ~tensor_traits();
    virtual bool work_size(int threads, const ggml_tensor * op, size_t & size) = 0;
    virtual bool compute_forward(ggml_compute_params * params, ggml_tensor * op) = 0;
};

class extra_buffer_type {
  public:
    virtual ~extra_buffer_type();
    virtual bool supports_op(ggml_backend_device * device, const ggml_tensor * op) = 0;
    virtual tensor_traits * get_tensor_traits(const ggml_tensor * op) = 0;
};
} // namespace ggml::cpu

using Extra = ggml_backend_buffer_type ** (*)(ggml_backend_device * device);
using Compute = bool (*)(const ggml_compute_params * params, ggml_tensor * op);

namespace {
class Attention final : public ggml::cpu::tensor_traits, public ggml::cpu::extra_buffer_type {
    Compute compute;

  public:
    explicit Attention(Compute compute) : compute(compute) {}

    // What ggml plans for its own is enough, and is needed where it is not taken.
    bool work_size(int, const ggml_tensor *, size_t &) override { return false; }
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override { return compute(params, op); }
    // No tensor ever lies in it: who places tensors does not know of it, see below.
    bool supports_op(ggml_backend_device *, const ggml_tensor *) override { return false; }
    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor *) override { return this; }
};
} // namespace

// To be called once, before anything is loaded or computed. False if a buffer type has its device elsewhere, as it may
// in another version.
//
// `extra` is where models ask which extra buffer types there are for weights. It answers for ever what it answered
// first, so it is asked before ours is among them.
extern "C" bool corral_attention_install(ggml_backend_device * processor, Extra extra, Compute compute) {
    auto name = [](ggml_backend_buffer_type *) { return "CORRAL_ATTENTION"; };
    auto * type = new ggml_backend_buffer_type{name, {}, processor, nullptr};
    if (ggml_backend_buft_get_device(type) != processor) {
        delete type;
        return false;
    }
    extra(processor);
    type->context = static_cast<ggml::cpu::extra_buffer_type *>(new Attention(compute));
    ggml_backend_cpu_get_extra_buffer_types().push_back(type);
    return true;
}
