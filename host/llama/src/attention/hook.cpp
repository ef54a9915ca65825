// Puts Corral's attention before that of ggml's CPU backend.
//
// ggml offers each operation to its "extra buffer types" before it computes it. They exist for other layouts of weights;
// this one has no buffers and takes one operation. ggml computes all others.
//
// The declarations below are internal to ggml (ggml-cpu/traits.h and ggml-backend-impl.h), copied because the headers are
// not installed. Compare them with every new version of llama-cpp-sys-2.

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

using GetExtraTypes = ggml_backend_buffer_type ** (*)(ggml_backend_device * device);
using Compute = bool (*)(const ggml_compute_params * params, ggml_tensor * op);

namespace {
class Attention final : public ggml::cpu::tensor_traits, public ggml::cpu::extra_buffer_type {
    Compute compute;

  public:
    explicit Attention(Compute compute) : compute(compute) {}

    // ggml plans enough memory for its own attention, which it needs for refused operations.
    bool work_size(int, const ggml_tensor *, size_t &) override { return false; }
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override { return compute(params, op); }
    // No tensor is allocated in this type: the code that places tensors does not know it, see below.
    bool supports_op(ggml_backend_device *, const ggml_tensor *) override { return false; }
    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor *) override { return this; }
};
} // namespace

// Called once, before anything is loaded or computed. Returns false if the struct's layout has changed.
//
// Models call `get_extra_types` for the buffer types of weights. It caches its first result, so this calls it before adding
// the new type.
extern "C" bool corral_attention_install(ggml_backend_device * cpu, GetExtraTypes get_extra_types, Compute compute) {
    auto name = [](ggml_backend_buffer_type *) { return "CORRAL_ATTENTION"; };
    auto * type = new ggml_backend_buffer_type{name, {}, cpu, nullptr};
    if (ggml_backend_buft_get_device(type) != cpu) {
        delete type;
        return false;
    }
    get_extra_types(cpu);
    type->context = static_cast<ggml::cpu::extra_buffer_type *>(new Attention(compute));
    ggml_backend_cpu_get_extra_buffer_types().push_back(type);
    return true;
}
