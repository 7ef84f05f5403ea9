// What a CPU build of torch lacks of CUDA and NCCL, played on the CPU: memory, devices, operators,
// and a process group. The build has the rest: the device type, its dispatch keys and its autograd.
//
// Where a rule of NCCL quotes a source, test_rehearsed_rules.py looks the words up in torch's wheel.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <pybind11/chrono.h>

#include <atomic>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <sstream>
#include <thread>

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using Clock = std::chrono::steady_clock;
constexpr auto GPU = c10::DeviceType::CUDA;

// ------------------------------------------------------------------ devices

static int g_devices = 0;
static thread_local DeviceIndex t_current = 0;

static Device checked(Device device) {
  TORCH_CHECK(device.index() < g_devices, "CUDA error: invalid device ordinal\n(rehearsed: there are ",
              g_devices, " GPUs)");
  return Device(GPU, device.index() < 0 ? t_current : device.index());
}

struct OnDevice {  // as a DeviceGuard
  DeviceIndex before = t_current;
  explicit OnDevice(Device device) { t_current = checked(device).index(); }
  ~OnDevice() { t_current = before; }
};

// ------------------------------------------------------------------ calls in flight

// What a call reads and writes is its own until wait(). After that the next use of the memory comes
// behind the call, as on a stream: here that use completes it. So neither the call nor wait() blocks.
using Range = std::pair<const char*, const char*>;

struct Flight {
  std::string name;
  std::vector<Range> reads, writes;
  std::vector<Tensor> held;  // so that nobody else gets their memory
  std::function<void()> finish;  // wait for the messages, and write what they brought
  Clock::time_point deadline;
  bool waited = false;
  std::atomic<bool> polled = false, done = false;
  std::mutex finishing;

  void complete() {
    std::lock_guard lock(finishing);
    if (done) return;
    try {
      finish();
    } catch (const std::exception& error) {
      // NCCL's watchdog ends the process when time is up, whatever the cause. distributed_c10d.py:
      // "failed async NCCL operations might result in subsequent CUDA operations running on corrupted data"
      std::this_thread::sleep_until(deadline);
      fprintf(stderr, "Watchdog caught collective operation timeout: %s (rehearsed: %s)\n",
              name.c_str(), error.what());
      std::abort();
    }
    done = true;
  }
};
using FlightPtr = std::shared_ptr<Flight>;
static std::mutex g_flights_lock;
static std::vector<FlightPtr> g_flights;
static std::vector<FlightPtr> g_late_copies;  // those of them that go to the CPU

static Range range_of(const Tensor& t) {
  if (!t.defined() || !t.has_storage() || t.numel() == 0) return {nullptr, nullptr};
  int64_t last = 0;
  for (int64_t dim = 0; dim < t.dim(); ++dim) last += (t.size(dim) - 1) * t.stride(dim);
  auto* begin = static_cast<const char*>(t.const_data_ptr());
  return {begin, begin + (last + 1) * t.element_size()};
}

static bool meet(const std::vector<Range>& ranges, Range other) {
  return std::any_of(ranges.begin(), ranges.end(), [&](Range one) {
    return one.first && other.first && one.first < other.second && other.first < one.second;
  });
}

static std::vector<FlightPtr> flights_over(const Tensor& t, bool writes) {
  auto range = range_of(t);
  std::vector<FlightPtr> found;
  std::lock_guard lock(g_flights_lock);
  g_flights.erase(std::remove_if(g_flights.begin(), g_flights.end(),
                                 [](auto& it) { return it->waited && it->done; }),
                  g_flights.end());
  for (auto& flight : g_flights)
    if (meet(flight->writes, range) || (writes && meet(flight->reads, range))) found.push_back(flight);
  return found;
}

static void touch(const Tensor& t, bool writes, const std::string& by) {
  if (!t.defined() || !t.is_cuda()) return;
  for (auto& flight : flights_over(t, writes)) {
    TORCH_CHECK(flight->waited, "RACE (rehearsed): ", by, writes ? " writes" : " reads", " memory of ",
                flight->name, ", which is in flight: no wait() before it");
    flight->complete();
  }
}

static void finish_late_copies() {
  std::vector<FlightPtr> all;
  {
    std::lock_guard lock(g_flights_lock);
    all.swap(g_late_copies);
  }
  for (auto& flight : all) flight->complete();
}

static void synchronize() {
  std::vector<FlightPtr> all;
  {
    std::lock_guard lock(g_flights_lock);
    all = g_flights;
    g_late_copies.clear();
  }
  for (auto& flight : all) flight->complete();
}

// ------------------------------------------------------------------ memory, guard, generators

struct CudaMemory final : at::Allocator {
  c10::DataPtr allocate(size_t n) override {
    void* data = nullptr;
    TORCH_CHECK(!n || posix_memalign(&data, 256, n) == 0, "CUDA out of memory (rehearsed)");
    if (n) memset(data, 0xA5, n);  // not zero, as on a GPU that somebody used before
    return {data, data, &std::free, Device(GPU, t_current)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t n) const override { memcpy(to, from, n); }
};
static CudaMemory g_memory;

static std::mutex g_pinned_lock;
static std::map<const char*, size_t> g_pinned;

struct PinnedMemory final : at::Allocator {
  static void release(void* data) {
    std::lock_guard lock(g_pinned_lock);
    g_pinned.erase(static_cast<const char*>(data));
    std::free(data);
  }
  c10::DataPtr allocate(size_t n) override {
    void* data = nullptr;
    TORCH_CHECK(posix_memalign(&data, 256, std::max<size_t>(n, 1)) == 0, "no pinned memory");
    std::lock_guard lock(g_pinned_lock);
    g_pinned[static_cast<const char*>(data)] = n;
    return {data, data, &release, Device(at::kCPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t n) const override { memcpy(to, from, n); }
};
static PinnedMemory g_pinned_memory;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream stream(Device d) { return c10::Stream(c10::Stream::DEFAULT, checked(d)); }
  c10::DeviceType type() const override { return GPU; }
  Device exchangeDevice(Device d) const override {
    return Device(GPU, std::exchange(t_current, checked(d).index()));
  }
  Device getDevice() const override { return Device(GPU, t_current); }
  void setDevice(Device d) const override { t_current = checked(d).index(); }
  void uncheckedSetDevice(Device d) const noexcept override {
    if (d.index() >= 0) t_current = d.index();
  }
  DeviceIndex deviceCount() const noexcept override { return g_devices; }
  // There is one stream for each device, and all that is not in flight is done.
  c10::Stream getStream(Device d) const override { return stream(d); }
  c10::Stream getDefaultStream(Device d) const override { return stream(d); }
  c10::Stream getStreamFromGlobalPool(Device d, bool) const override { return stream(d); }
  c10::Stream getNewStream(Device d, int) const override { return stream(d); }
  c10::Stream exchangeStream(c10::Stream s) const override { return stream(s.device()); }
  void record(void** event, const c10::Stream&, const DeviceIndex, const c10::EventFlag) const override {
    *event = reinterpret_cast<void*>(1);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { synchronize(); }
  void synchronizeEvent(void*) const override { synchronize(); }
  void synchronizeDevice(const DeviceIndex) const override { synchronize(); }
  double elapsedTime(void*, void*, const DeviceIndex) const override { return 0.1; }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

// The numbers of a GPU are others than those of the CPU with the same seed.
struct Generator final : c10::GeneratorImpl {
  at::Generator cpu;
  uint64_t seed_;
  static uint64_t other(uint64_t seed) { return seed ^ 0x5bd1e995; }
  Generator(DeviceIndex index, uint64_t seed)
      : GeneratorImpl(Device(GPU, index), c10::DispatchKeySet(c10::DispatchKey::CUDA)),
        cpu(at::detail::createCPUGenerator(other(seed))), seed_(seed) {}
  void set_current_seed(uint64_t seed) override { seed_ = seed; cpu.set_current_seed(other(seed)); }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom(true));
    return seed_;
  }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  void set_state(const c10::TensorImpl& state) override { cpu.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return cpu.unsafeGetGeneratorImpl()->get_state();
  }
  Generator* clone_impl() const override {
    auto* copy = new Generator(device().index(), seed_);
    copy->set_state(*get_state());
    return copy;
  }
};

static at::Generator& default_generator(DeviceIndex index) {
  static std::map<DeviceIndex, at::Generator> all;
  auto wanted = checked(Device(GPU, index)).index();
  if (!all.count(wanted)) all[wanted] = at::make_generator<Generator>(wanted, c10::default_rng_seed_val);
  return all[wanted];
}
static bool g_make_default_generators = false;  // while torch.cuda fills its tuple of them

namespace at {
// subtle: torch makes its hooks once, when it first asks: this must be loaded before torch is.
struct Hooks final : CUDAHooksInterface {
  explicit Hooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return g_devices > 0; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return g_devices > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return g_devices; }
  DeviceIndex deviceCount() const override { return g_devices; }
  DeviceIndex current_device() const override { return t_current; }
  DeviceIndex getCurrentDevice() const override { return t_current; }
  void setCurrentDevice(DeviceIndex i) const override { t_current = checked(Device(GPU, i)).index(); }
  DeviceIndex exchangeDevice(DeviceIndex i) const override { return std::exchange(t_current, i); }
  DeviceIndex maybeExchangeDevice(DeviceIndex i) const override { return std::exchange(t_current, i); }
  Device getDeviceFromPtr(void*) const override { return Device(GPU, t_current); }
  void deviceSynchronize(DeviceIndex) const override { synchronize(); }
  Allocator* getCUDADeviceAllocator() const override { return &g_memory; }
  Allocator* getPinnedMemoryAllocator() const override { return &g_pinned_memory; }
  bool isPinnedPtr(const void* data) const override {
    std::lock_guard lock(g_pinned_lock);
    auto next = g_pinned.upper_bound(static_cast<const char*>(data));
    return next != g_pinned.begin() && data < (--next)->first + std::max<size_t>(next->second, 1);
  }
  const Generator& getDefaultGenerator(DeviceIndex i) const override { return default_generator(i); }
  Generator getNewGenerator(DeviceIndex i) const override {
    if (g_make_default_generators) return default_generator(i);
    return make_generator<::Generator>(checked(Device(GPU, i)).index(), c10::default_rng_seed_val);
  }
};
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, Hooks)
}  // namespace at

// ------------------------------------------------------------------ operators

static Tensor memory_of(const Tensor& t) {  // as a tensor of the CPU, unknown to autograd
  void* data = t.numel() ? const_cast<void*>(t.const_data_ptr()) : nullptr;
  auto same = at::from_blob(data, t.sizes(), t.strides(), at::TensorOptions().dtype(t.dtype()));
  same._set_neg(t.is_neg());
  same._set_conj(t.is_conj());
  return same;
}

static Tensor as_cpu(const Tensor& t) { return t.is_cuda() ? memory_of(t) : t; }

using Sizes = c10::IntArrayRef;
using Dtype = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using Format = std::optional<at::MemoryFormat>;
static const c10::DispatchKeySet KEY(c10::DispatchKey::CUDA);

static Tensor cuda_empty(Sizes size, Dtype dtype, Layout, std::optional<Device> device, std::optional<bool>,
                    Format format) {
  OnDevice guard(device.value_or(Device(GPU)));
  return at::detail::empty_generic(size, &g_memory, KEY, c10::dtype_or_default(dtype), format);
}

static Tensor cuda_empty_strided(Sizes size, Sizes stride, Dtype dtype, Layout, std::optional<Device> device,
                            std::optional<bool>) {
  OnDevice guard(device.value_or(Device(GPU)));
  return at::detail::empty_strided_generic(size, stride, &g_memory, KEY, c10::dtype_or_default(dtype));
}

// A copy to the CPU that does not block: the program reads what lay there until it waits for the GPU.
static void copy_later(const Tensor& to, const Tensor& from) {
  auto flight = std::make_shared<Flight>();
  flight->waited = true;
  flight->held = {to};
  flight->finish = [to = memory_of(to), now = as_cpu(from).clone()] { to.copy_(now); };
  memset(to.data_ptr(), 0xA5, to.nbytes());
  std::lock_guard lock(g_flights_lock);
  g_flights.push_back(flight);
  g_late_copies.push_back(flight);
}

static Tensor& cuda_copy(Tensor& to, const Tensor& from, bool non_blocking) {
  touch(from, false, "copy_");
  touch(to, true, "copy_");
  const bool comes = from.is_cuda() && !to.is_cuda();
  if (comes && non_blocking && to.numel() && to.is_non_overlapping_and_dense() && to.is_pinned()) {
    copy_later(to, from);
    return to;
  }
  if (to.numel() || from.numel()) as_cpu(to).copy_(as_cpu(from));
  if (comes) finish_late_copies();  // this one waits for the stream
  return to;
}

static const Tensor& cuda_resize(const Tensor& t, Sizes size, Format) {
  auto storage = t.storage();
  size_t needed = (c10::multiply_integers(size) + t.storage_offset()) * t.element_size();
  if (storage.nbytes() < needed) {
    OnDevice guard(t.device());
    auto data = g_memory.allocate(needed);
    if (storage.nbytes()) memcpy(data.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(data));
    storage.set_nbytes(needed);
  }
  t.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return t;
}

static Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  Tensor result = to;
  return cuda_copy(result, from, false);
}

static Tensor resized_copy_from(const Tensor& from, const Tensor& to) {
  if (from.sizes() != to.sizes()) cuda_resize(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

static at::Scalar item(const Tensor& t) {
  touch(t, false, "item()");
  finish_late_copies();
  return at::_local_scalar_dense(as_cpu(t));
}

// Its schema has no generator, so the fallback would take that of the CPU.
static std::tuple<Tensor, Tensor> native_dropout(const Tensor& t, double p, std::optional<bool> train) {
  if (!train.value_or(true)) return {t.clone(), at::ones_like(t, t.options().dtype(at::kBool))};
  auto mask = at::empty_like(t, t.options().dtype(at::kBool)).bernoulli_(1 - p);
  return {t * mask * (p < 1 ? 1 / (1 - p) : 0), mask};
}

// Every other operator is that of the CPU, after the checks that a GPU makes.
static void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto name = c10::toString(schema.operator_name());
  const auto& arguments = schema.arguments();
  auto value = [&, first = stack->size() - arguments.size()](size_t i) -> c10::IValue& { return (*stack)[first + i]; };
  // An index may lie on the CPU, and the lists of foreach operators may mix devices.
  const bool may_mix = name.find("index") != name.npos || name.find("_foreach") != name.npos ||
                       name.find("_fused") != name.npos;
  std::optional<Device> common;
  auto see = [&](const Tensor& t, bool writes) {
    if (!t.defined()) return;
    touch(t, writes, name);
    if (t.dim() == 0 && !t.is_cuda()) return;  // a number of the CPU may take part
    if (!common) common = t.device();
    TORCH_CHECK(may_mix || *common == t.device(),
                "Expected all tensors to be on the same device, but found at least two devices, ",
                *common, " and ", t.device(), "! (rehearsed, in ", name, ")");
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& it = value(i);
    const bool writes = arguments[i].alias_info() && arguments[i].alias_info()->isWrite();
    if (it.isTensor()) see(it.toTensor(), writes);
    if (it.isTensorList())
      for (const auto& t : it.toTensorVector()) see(t, writes);
    if (it.isOptionalTensorList())
      for (const auto& t : it.toOptionalTensorVector())
        if (t) see(*t, writes);
    if (it.isDevice() && it.toDevice().is_cuda()) common = it.toDevice();
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    auto& it = value(i);
    if (arguments[i].name() == "generator") {
      auto generator = it.isGenerator() ? it.toGenerator() : default_generator(common ? common->index() : -1);
      TORCH_CHECK(generator.device().is_cuda(), "Expected a 'cuda' device type for generator but found '",
                  generator.device().type(), "'");
      it = static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->cpu;
    }
    // Batch norm changes its running statistics, and its schema does not say so: hand over the memory.
    if (arguments[i].name().rfind("running_", 0) == 0 && it.isTensor()) it = as_cpu(it.toTensor());
  }
  at::native::cpu_fallback(op, stack, false);
}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  namespace native = at::native;
  m.impl("empty.memory_format", &cuda_empty);
  m.impl("empty_strided", &cuda_empty_strided);
  m.impl("copy_", &cuda_copy);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &resized_copy_from);
  m.impl("resize_", &cuda_resize);
  m.impl("_local_scalar_dense", &item);
  m.impl("native_dropout", &native_dropout);
  m.impl("record_stream", [](Tensor&, c10::Stream) {});
  // These make another view of the same memory, so the memory stays where it is.
  m.impl("view", [](const Tensor& t, Sizes size) { return native::view(t, size); });
  m.impl("as_strided", [](const Tensor& t, Sizes size, Sizes stride, std::optional<int64_t> offset) {
    return native::as_strided_tensorimpl(t, size, stride, offset);
  });
  m.impl("_reshape_alias", [](const Tensor& t, Sizes size, Sizes stride) {
    return native::_reshape_alias(t, size, stride);
  });
  m.impl("unfold", [](const Tensor& t, int64_t dim, int64_t size, int64_t step) {
    return native::unfold(t, dim, size, step);
  });
  m.impl("view_as_real", [](const Tensor& t) { return native::view_as_real(t); });
  m.impl("view_as_complex", [](const Tensor& t) { return native::view_as_complex(t); });
  m.impl("set_.source_Storage", [](Tensor& t, at::Storage storage) -> Tensor& {
    return native::set_storage_cpu_(t, storage, 0, {int64_t(storage.nbytes() / t.element_size())}, {});
  });
  m.impl("set_.source_Storage_storage_offset",
         [](Tensor& t, at::Storage storage, int64_t offset, Sizes size, Sizes stride) -> Tensor& {
           return native::set_storage_cpu_(t, storage, offset, size, stride);
         });
  m.impl("set_.source_Tensor", [](Tensor& t, const Tensor& from) -> Tensor& {
    return native::set_storage_cpu_(t, from.storage(), from.storage_offset(), from.sizes(), from.strides());
  });
}

namespace c10d {
namespace {
struct CudaTimer final : Timer {  // what DDP's logger asks for
  explicit CudaTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    return getTimeRef(end) - getTimeRef(start);
  }
};
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, CudaTimer)
}  // namespace
}  // namespace c10d

// ------------------------------------------------------------------ NCCL

using c10d::Backend;
using c10d::OpType;
using c10d::ReduceOp;
using c10d::Work;
using WorkPtr = c10::intrusive_ptr<Work>;
using BackendPtr = c10::intrusive_ptr<Backend>;
using Tensors = std::vector<Tensor>;

static py::object* g_make_gloo = nullptr;  // what carries the bytes

struct NcclWork final : Work {
  std::vector<FlightPtr> flights;
  Tensors outputs;
  bool blocks;
  NcclWork(int rank, OpType type, bool blocks = false) : Work(rank, type), blocks(blocks) {}
  void add(const NcclWork& other) {
    flights.insert(flights.end(), other.flights.begin(), other.flights.end());
    outputs.insert(outputs.end(), other.outputs.begin(), other.outputs.end());
  }
  bool isCompleted() override {
    for (auto& flight : flights)
      if (!flight->polled.exchange(true)) std::thread([flight] { flight->complete(); }).detach();
    return std::all_of(flights.begin(), flights.end(), [](auto& it) { return it->done.load(); });
  }
  bool isSuccess() const override { return true; }
  void synchronize() override { wait(); }
  // ProcessGroupNCCL.hpp: "Let current stream wait on the completion of the NCCL work"
  bool wait(std::chrono::milliseconds = kNoTimeout) override {
    for (auto& flight : flights) flight->waited = true;
    if (blocks || getenv("TORCH_NCCL_BLOCKING_WAIT"))
      for (auto& flight : flights) flight->complete();
    return true;
  }
  Tensors result() override { return outputs; }
  // The future is complete at once: what is done with its value is queued behind the call.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    wait();
    std::set<Device, bool (*)(Device, Device)> devices([](Device a, Device b) { return a.index() < b.index(); });
    for (auto& t : outputs) devices.insert(t.device());
    auto future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::vector<Device>(devices.begin(), devices.end()));
    future->markCompleted(c10::IValue(outputs));
    return future;
  }
};
using NcclWorkPtr = c10::intrusive_ptr<NcclWork>;

// A process group as ProcessGroupNCCL, for the Python of torch. Each collective is a set of messages,
// and a reduction is made by the rank that receives them.
struct Nccl final : Backend {
  struct Options final : Backend::Options {
    Options() : Backend::Options("nccl", std::chrono::minutes(10)) {}
    bool is_high_priority_stream = false;
    int64_t split_color = 0;
    BackendPtr split_from;
  };
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<Options> options;
  std::map<std::string, BackendPtr> communicators;
  NcclWorkPtr batch;  // between startCoalescing and endCoalescing
  uint64_t sequence = 0;

  Nccl(c10::intrusive_ptr<c10d::Store> store, int rank, int size, c10::intrusive_ptr<Options> options)
      : Backend(rank, size), store(std::move(store)), options(std::move(options)) {
    TORCH_CHECK_WITH(ValueError, g_devices > 0,
                     "ProcessGroupNCCL is only supported with GPUs, no GPUs found!");
  }
  const std::string getBackendName() const override { return "nccl"; }
  c10::intrusive_ptr<Backend::Options> getBackendOptions() override { return options; }
  bool supportsCoalescing() const override { return true; }
  void setTimeout(std::chrono::milliseconds limit) override { options->timeout = limit; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence; }
  c10d::ErrorType getError() override { return c10d::ErrorType::SUCCESS; }
  void shutdown() override {
    ::synchronize();
    communicators.clear();
  }
  void abort() override { communicators.clear(); }
  void eagerConnectSingleDevice(Device device) override { world(device); }

  // --- communicators: made at the first call, by all of their ranks

  static std::string physical(DeviceIndex index) {
    const char* visible = getenv("CUDA_VISIBLE_DEVICES");
    if (!visible) return std::to_string(index);
    std::stringstream names(visible);
    std::string name;
    for (int i = 0; i <= index; ++i) std::getline(names, name, ',');
    return name;
  }
  BackendPtr communicator(const std::string& key, int rank, int size, Device device) {
    if (auto found = communicators.find(key); found != communicators.end()) return found->second;
    auto own = c10::make_intrusive<c10d::PrefixStore>("rehearsed/" + key, store);
    own->set(std::to_string(rank), physical(device.index()));
    auto meet = [&](const std::string& where) {
      if (own->add(where, 1) == size) own->set("all " + where, "");
      own->wait({"all " + where}, options->timeout);
    };
    meet("arrived");
    std::map<std::string, int> users;
    const char* may_share = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    for (int peer = 0; peer < size; ++peer) {
      auto gpu = own->get_to_str(std::to_string(peer));
      auto [user, is_first] = users.emplace(gpu, peer);
      // NCCL's own words. Since 2.30 ranks may share a GPU if they ask for it (its release notes).
      TORCH_CHECK_WITH(DistBackendError, is_first || (may_share && *may_share == '1'),
                       "NCCL error (rehearsed): ncclInvalidUsage\nLast error:\nDuplicate GPU detected : rank ",
                       user->second, " and rank ", peer, " both on CUDA device ", gpu);
    }
    {
      py::gil_scoped_acquire gil;
      communicators[key] = (*g_make_gloo)(own, rank, size, options->timeout).cast<BackendPtr>();
    }
    meet("connected");  // nobody leaves while another one still connects to it
    return communicators[key];
  }
  BackendPtr world(Device device) {
    TORCH_CHECK(!bound_device_id_ || *bound_device_id_ == device, "Tensor found on device ", device,
                " but backend constrained to ", *bound_device_id_);
    return communicator("world", rank_, size_, device);
  }

  // --- what NCCL refuses

  static void check(const Tensor& t, bool is_message = false) {
    TORCH_CHECK_WITH(ValueError, t.is_cuda() && !t.is_sparse(), "Tensors must be CUDA and dense");
    if (!t.is_contiguous(t.suggest_memory_format())) {
      TORCH_CHECK_WITH(ValueError, is_message, "Tensors must be contiguous");
      TORCH_WARN_ONCE("Detected non-contiguous tensor in P2P operations. It is user responsibility to "
                      "guarantee that source and destination tensors have the same contiguity format.");
    }
    check_type(t);
  }
  static void check_type(const Tensor& t) {
    // NCCLUtils.hpp: "static std::map<at::ScalarType, ncclDataType_t> ncclDataType"
    static const std::set<at::ScalarType> known{
        at::kChar, at::kByte, at::kFloat, at::kDouble, at::kInt, at::kLong, at::kHalf, at::kBool, at::kBFloat16,
        at::kFloat8_e5m2, at::kFloat8_e4m3fn, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz};
    TORCH_CHECK_WITH(TypeError, known.count(t.scalar_type()),
                     "Input tensor data type is not supported for NCCL process group: ", t.scalar_type());
  }
  static void check(const Tensor& t, const ReduceOp& op) {
    check(t);
    check_reduction(t, op);
  }
  static bool is_fnuz(const Tensor& t) {
    return t.scalar_type() == at::kFloat8_e4m3fnuz || t.scalar_type() == at::kFloat8_e5m2fnuz;
  }
  // Of gather, scatter and both all_to_all, which have a shorter list of types.
  static void check_movable(const Tensor& t) {
    check_type(t);
    TORCH_CHECK(!is_fnuz(t), "Unconvertible NCCL type ", t.scalar_type());
  }
  // These three calls take complex numbers as pairs of floats; the others do not.
  static Tensor as_reals(const Tensor& t) { return t.is_complex() ? at::view_as_real(t) : t; }
  static Tensor as_reals(const Tensor& t, const ReduceOp& op) {
    TORCH_CHECK(!t.is_complex() || op.op_ == ReduceOp::SUM || op.op_ == ReduceOp::AVG || op.op_ == ReduceOp::PREMUL_SUM,
                "this reduction does not support complex tensors");
    return as_reals(t);
  }
  static void check_reduction(const Tensor& t, const ReduceOp& op) {
    check_type(t);
    TORCH_CHECK(!is_fnuz(t), "Unsupported Float8 type for NCCL reduction");
    TORCH_CHECK_WITH(TypeError, t.scalar_type() != at::kBool || op.op_ != ReduceOp::AVG,
                     "Cannot use ReduceOp.AVG with boolean inputs");
    static const std::map<ReduceOp::RedOpType, std::string> bitwise{
        {ReduceOp::BAND, "BAND"}, {ReduceOp::BOR, "BOR"}, {ReduceOp::BXOR, "BXOR"}};
    auto refused = bitwise.find(op.op_);
    TORCH_CHECK_WITH(ValueError, refused == bitwise.end(), "Cannot use ReduceOp.", refused->second, " with NCCL");
    TORCH_CHECK_WITH(TypeError, op.op_ != ReduceOp::PREMUL_SUM || (t.is_floating_point() && t.element_size() > 1),
                     "PreMulSum Data type must be half, float, bfloat16 or double");
  }
  static void check_alike(const Tensors& pieces, const Tensor& like) {
    for (auto& t : pieces)
      TORCH_CHECK_WITH(TypeError, t.scalar_type() == like.scalar_type(),
                       "Tensor list operands to scatter/gather must have the same dtype");
  }
  // c10d/Utils.hpp: "invalid tensor size at index "
  static void check_same_size(const Tensors& pieces, const Tensor& like) {
    for (size_t i = 0; i < pieces.size(); ++i)
      TORCH_CHECK_WITH(ValueError, pieces[i].sizes() == like.sizes(), "invalid tensor size at index ", i,
                       " (expected ", like.sizes(), ", got ", pieces[i].sizes(), ")");
  }

  // --- messages

  // The raw memory from the first element on, as NCCL sends it, whatever the strides.
  static Tensor bytes_of(const Tensor& t) {
    for (auto& flight : flights_over(t, true)) flight->complete();  // one call after another, as on a stream
    auto n = t.numel() * int64_t(t.element_size());
    return n ? at::from_blob(const_cast<void*>(t.const_data_ptr()), {n}, at::kByte).clone()
             : at::empty({0}, at::kByte);
  }
  static Tensor room_for(const Tensor& t) {
    return at::empty({t.numel() * int64_t(t.element_size())}, at::kByte);
  }
  static void put(const Tensor& bytes, const Tensor& t) {
    if (bytes.numel()) memcpy(const_cast<void*>(t.const_data_ptr()), bytes.const_data_ptr(), bytes.numel());
  }

  // Send `from[r]` to each rank r. `received` gets what they sent, in rooms for `to[r]`.
  NcclWorkPtr exchange(const char* name, OpType type, const BackendPtr& by, const Tensors& from, const Tensors& to,
                       const Tensors& outputs, std::function<void(const Tensors& received)> received,
                       bool blocks = false) {
    constexpr int TAG = 1;
    Tensors sent, rooms;
    std::vector<WorkPtr> works;
    for (auto& t : from) sent.push_back(bytes_of(t));
    for (auto& t : outputs) bytes_of(t);
    for (auto& t : to) rooms.push_back(room_for(t));
    for (int peer = 0; peer < int(to.size()); ++peer) {
      if (peer == rank_) continue;
      Tensors room{rooms[peer]}, message{sent[peer]};
      if (room[0].numel()) works.push_back(by->recv(room, peer, TAG));
      if (message[0].numel()) works.push_back(by->send(message, peer, TAG));
    }
    rooms[rank_] = sent[rank_];
    auto finish = [=] {
      for (auto& work : works) work->wait();
      received(rooms);
    };
    return in_flight(name, type, from, outputs, finish, blocks);
  }
  NcclWorkPtr in_flight(const char* name, OpType type, const Tensors& from, const Tensors& outputs,
                        std::function<void()> finish, bool blocks = false) {
    ++sequence;
    auto flight = std::make_shared<Flight>();
    flight->name = name;
    flight->finish = std::move(finish);
    flight->deadline = Clock::now() + options->timeout;
    for (auto& t : from) flight->reads.push_back(range_of(t));
    for (auto& t : outputs) flight->writes.push_back(range_of(t));
    flight->held = from;
    flight->held.insert(flight->held.end(), outputs.begin(), outputs.end());
    {
      std::lock_guard lock(g_flights_lock);
      g_flights.push_back(flight);
    }
    auto work = c10::make_intrusive<NcclWork>(rank_, type, blocks);
    work->flights = {flight};
    work->outputs = outputs;
    if (batch) batch->add(*work);
    return work;
  }
  Tensor nothing(const Tensor& like) const { return like.new_empty({0}); }
  Tensors all(const Tensor& t) const { return Tensors(size_, t); }
  Tensors only(int rank, const Tensor& t) const {
    Tensors list(size_, nothing(t));
    list[rank] = t;
    return list;
  }
  Tensors cut(const Tensor& t) const { return t.view({-1}).chunk(size_); }

  // The messages reduced into `to`. NCCL counts in the dtype itself; so does this, but for half precision.
  void reduce_into(const Tensor& to, const Tensors& received, const ReduceOp& op) const {
    const auto dtype = to.scalar_type();
    const bool small = at::isReducedFloatingType(dtype);
    Tensors parts;
    for (auto& bytes : received) {
      auto part = bytes.view(dtype);
      parts.push_back(small ? part.to(at::kFloat) : part);
    }
    if (op.op_ == ReduceOp::PREMUL_SUM) {
      auto* factor = static_cast<c10d::PreMulSumSupplement*>(op.supplement_.get());
      for (auto& part : parts)
        part = factor->tensor_factor.defined() ? part * as_cpu(factor->tensor_factor).to(part.dtype())
                                               : part * factor->double_factor;
    }
    auto result = parts[0].clone();
    for (int i = 1; i < size_; ++i) {
      if (op.op_ == ReduceOp::MIN) result = at::minimum(result, parts[i]);
      else if (op.op_ == ReduceOp::MAX) result = at::maximum(result, parts[i]);
      else if (op.op_ == ReduceOp::PRODUCT) result.mul_(parts[i]);
      else if (dtype == at::kBool) result.logical_or_(parts[i]);
      else result.add_(parts[i]);
    }
    if (op.op_ == ReduceOp::AVG) result = result.is_floating_point() ? result / size_ : at::div(result, size_, "trunc");
    as_cpu(to).copy_(result.view(to.sizes()));
  }

  // --- the calls

  void startCoalescing() override { batch = c10::make_intrusive<NcclWork>(rank_, OpType::COALESCED); }
  WorkPtr endCoalescing() override { return std::exchange(batch, nullptr); }
  template <typename Each>
  WorkPtr together(size_t n, Each each) {
    auto work = c10::make_intrusive<NcclWork>(rank_, OpType::COALESCED);
    for (size_t i = 0; i < n; ++i) work->add(static_cast<NcclWork&>(*each(i)));
    return work;
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& o) override {
    auto t = as_reals(tensors[0], o.reduceOp);
    check(t, o.reduceOp);
    return exchange("all_reduce", OpType::ALLREDUCE, world(t.device()), all(t), all(t), {t},
                    [=, this](auto& received) { reduce_into(t, received, o.reduceOp); });
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& o) override {
    return together(tensors.size(), [&](size_t i) {
      check(tensors[i], o.reduceOp);  // no pairs of floats here
      Tensors one{tensors[i]};
      return allreduce(one, o);
    });
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& o) override {
    auto t = as_reals(tensors[0]);
    const int root = o.rootRank;
    check(t);
    return exchange("broadcast", OpType::BROADCAST, world(t.device()), root == rank_ ? all(t) : all(nothing(t)),
                    only(root, t), {t}, [=](auto& received) { put(received[root], t); });
  }
  // Only the root's tensor changes.
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& o) override {
    auto t = as_reals(tensors[0], o.reduceOp);
    const bool is_root = o.rootRank == rank_;
    check(t, o.reduceOp);
    return exchange("reduce", OpType::REDUCE, world(t.device()), only(o.rootRank, t),
                    is_root ? all(t) : all(nothing(t)), {t}, [=, this](auto& received) {
                      if (is_root) reduce_into(t, received, o.reduceOp);
                    });
  }
  NcclWorkPtr gather_all(const char* name, OpType type, const Tensors& pieces, const Tensor& in, const Tensors& outputs) {
    return exchange(name, type, world(in.device()), all(in), pieces, outputs, [=](auto& received) {
      for (size_t r = 0; r < pieces.size(); ++r) {
        auto value = received[r].view(in.scalar_type()).view(pieces[r].sizes());
        as_cpu(pieces[r]).copy_(value);  // from a flat buffer, as NCCL's process group does
      }
    });
  }
  WorkPtr allgather(std::vector<Tensors>& outs, Tensors& ins, const c10d::AllgatherOptions&) override {
    check(ins[0]);
    TORCH_CHECK_WITH(ValueError, int(outs[0].size()) == size_,
                     "Tensor list input to scatter/gather must match number of collective participants");
    check_alike(outs[0], ins[0]);
    return gather_all("all_gather", OpType::ALLGATHER, outs[0], ins[0], outs[0]);
  }
  WorkPtr _allgather_base(Tensor& out, Tensor& in, const c10d::AllgatherOptions&) override {
    check(in);
    check(out);
    TORCH_CHECK_WITH(TypeError, in.dtype() == out.dtype(), "output tensor must have the same type as input tensor");
    TORCH_CHECK_WITH(ValueError, in.numel() * size_ == out.numel(),
                     "output tensor size must be equal to world_size times input tensor size");
    auto flat = in.view({-1});
    return gather_all("all_gather_into_tensor", OpType::_ALLGATHER_BASE, cut(out), flat, {out});
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outs, Tensors& ins, const c10d::AllgatherOptions& o) override {
    return together(ins.size(), [&](size_t i) { return _allgather_base(outs[i], ins[i], o); });
  }
  NcclWorkPtr scatter_sums(const char* name, OpType type, const Tensor& out, const Tensors& ins, const ReduceOp& op) {
    return exchange(name, type, world(out.device()), ins, all(out), {out},
                    [=, this](auto& received) { reduce_into(out, received, op); });
  }
  WorkPtr reduce_scatter(Tensors& outs, std::vector<Tensors>& ins, const c10d::ReduceScatterOptions& o) override {
    check(outs[0], o.reduceOp);
    TORCH_CHECK_WITH(ValueError, int(ins[0].size()) == size_,
                     "Tensor list input to scatter/gather must match number of collective participants");
    check_alike(ins[0], outs[0]);
    return scatter_sums("reduce_scatter", OpType::REDUCE_SCATTER, outs[0], ins[0], o.reduceOp);
  }
  WorkPtr _reduce_scatter_base(Tensor& out, Tensor& in, const c10d::ReduceScatterOptions& o) override {
    TORCH_CHECK_WITH(TypeError, in.dtype() == out.dtype(), "input tensor must be the same type as the output tensor.");
    TORCH_CHECK_WITH(ValueError, in.numel() == out.numel() * size_,
                     "input tensor must be the same size as output size times world size");
    check_reduction(out, o.reduceOp);  // its layout is not asked for
    return scatter_sums("reduce_scatter_tensor", OpType::_REDUCE_SCATTER_BASE, out, cut(in), o.reduceOp);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outs, Tensors& ins, const c10d::ReduceScatterOptions& o) override {
    return together(ins.size(), [&](size_t i) { return _reduce_scatter_base(outs[i], ins[i], o); });
  }
  NcclWorkPtr move(const char* name, OpType type, const Tensors& ins, const Tensors& outs, const Tensors& outputs) {
    return exchange(name, type, world(ins[0].device()), ins, outs, outputs, [=](auto& received) {
      for (size_t r = 0; r < outs.size(); ++r) put(received[r], outs[r]);
    });
  }
  WorkPtr alltoall(Tensors& outs, Tensors& ins, const c10d::AllToAllOptions&) override {
    for (auto& t : outs) check(t), check_movable(t);
    for (auto& t : ins) check(t), check_movable(t);
    return move("all_to_all", OpType::ALLTOALL, ins, outs, outs);
  }
  Tensors rows(const Tensor& t, std::vector<int64_t> splits) const {
    TORCH_CHECK(!splits.empty() || t.size(0) % size_ == 0, "Tensor's dim 0 does not divide equally across group size");
    if (splits.empty()) splits.assign(size_, t.size(0) / size_);
    TORCH_CHECK(int(splits.size()) == size_, "Number of tensor splits not equal to group size");
    TORCH_CHECK(std::accumulate(splits.begin(), splits.end(), int64_t(0)) == t.size(0),
                "Split sizes doesn't match total dim 0 size");
    return t.split_with_sizes(splits);
  }
  WorkPtr alltoall_base(Tensor& out, Tensor& in, std::vector<int64_t>& out_splits, std::vector<int64_t>& in_splits,
                        const c10d::AllToAllOptions&) override {
    check(out);
    check(in);
    check_movable(in);
    TORCH_CHECK(in.scalar_type() == out.scalar_type(), "Tensors are not equal in data type");
    return move("all_to_all_single", OpType::ALLTOALL_BASE, rows(in, in_splits), rows(out, out_splits), {out});
  }
  WorkPtr gather(std::vector<Tensors>& outs, Tensors& ins, const c10d::GatherOptions& o) override {
    auto in = ins[0];
    const bool is_root = o.rootRank == rank_;
    check(in);
    check_movable(in);
    TORCH_CHECK_WITH(ValueError, is_root ? outs.size() == 1 && int(outs[0].size()) == size_ : outs.empty(),
                     is_root ? "Incorrect output list size" : "requires empty output on non-root");
    auto pieces = is_root ? outs[0] : all(nothing(in));
    check_alike(pieces, in);
    if (is_root) check_same_size(pieces, in);
    return move("gather", OpType::GATHER, only(o.rootRank, in), pieces, is_root ? pieces : Tensors{});
  }
  WorkPtr scatter(Tensors& outs, std::vector<Tensors>& ins, const c10d::ScatterOptions& o) override {
    auto out = outs[0];
    const bool is_root = o.rootRank == rank_;
    check_movable(out);  // its layout is not asked for
    TORCH_CHECK_WITH(ValueError, is_root ? ins.size() == 1 && int(ins[0].size()) == size_ : ins.empty(),
                     is_root ? "Incorrect input list size" : "requires empty input on non-root");
    auto pieces = is_root ? ins[0] : all(nothing(out));
    for (auto& t : pieces) check_type(t);
    check_alike(pieces, out);
    if (is_root) check_same_size(pieces, out);
    return move("scatter", OpType::SCATTER, pieces, only(o.rootRank, out), {out});
  }
  WorkPtr barrier(const c10d::BarrierOptions& o) override {
    auto device = o.device ? *o.device : bound_device_id_ ? *bound_device_id_ : Device(GPU, rank_ % g_devices);
    auto t = at::zeros({1}, at::TensorOptions().device(checked(device)));
    return exchange("barrier", OpType::BARRIER, world(t.device()), all(t), all(t), {}, [](auto&) {}, true);
  }

  // Outside a batch, and without a device_id, each pair of ranks has a communicator of its own.
  // distributed_c10d.py: "``tag`` is not supported with the NCCL backend."
  template <typename Call>
  WorkPtr message(const char* name, OpType type, const Tensor& t, int peer, const Tensors& from, const Tensors& to, Call call) {
    check(t, true);
    auto by = world_or_pair(t.device(), peer);
    bytes_of(t);
    return in_flight(name, type, from, to, call(by.first, by.second));
  }
  std::pair<BackendPtr, int> world_or_pair(Device device, int peer) {
    if (batch || bound_device_id_) return {world(device), peer};
    TORCH_CHECK(peer != rank_, "ncclInvalidUsage: a message to oneself needs a batch (rehearsed)");
    auto key = std::to_string(std::min(rank_, peer)) + ":" + std::to_string(std::max(rank_, peer));
    return {communicator(key, rank_ > peer, 2, device), rank_ < peer};
  }
  WorkPtr recvAnysource(Tensors&, int) override {
    TORCH_CHECK(false, "ProcessGroupNCCL does not support recvAnysource");
  }
  WorkPtr send(Tensors& tensors, int peer, int) override {
    auto t = tensors[0];
    return message("send", OpType::SEND, t, peer, {t}, {}, [&](auto& by, int to) -> std::function<void()> {
      Tensors bytes{bytes_of(t)};
      auto work = by->send(bytes, to, 0);
      return [=] { work->wait(); };
    });
  }
  WorkPtr recv(Tensors& tensors, int peer, int) override {
    auto t = tensors[0];
    return message("recv", OpType::RECV, t, peer, {}, {t}, [&](auto& by, int from) -> std::function<void()> {
      Tensors room{room_for(t)};
      auto work = by->recv(room, from, 0);
      return [=] {
        work->wait();
        put(room[0], t);
      };
    });
  }
};

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  c10::SetAllocator(GPU, &g_memory);
  m.def("set_device_count", [](int n) { g_devices = n; });
  m.def("get_device", [] { return int(t_current); });
  m.def("set_device", [](int index) { t_current = checked(Device(GPU, index)).index(); });
  m.def("synchronize", &synchronize, py::call_guard<py::gil_scoped_release>());
  m.def("make_default_generators", [](bool yes) { g_make_default_generators = yes; });
  m.def("carry_with", [](py::object make_gloo) { g_make_gloo = new py::object(std::move(make_gloo)); });
  py::module::import("torch._C._distributed_c10d");
  using Options = Nccl::Options;
  py::class_<Nccl, c10::intrusive_ptr<Nccl>, Backend> group(m, "ProcessGroupNCCL");
  py::class_<Options, c10::intrusive_ptr<Options>, Backend::Options>(group, "Options")
      .def(py::init([](bool) { return c10::make_intrusive<Options>(); }), py::arg("is_high_priority_stream") = false)
      .def_readwrite("is_high_priority_stream", &Options::is_high_priority_stream)
      .def_readwrite("split_color", &Options::split_color)
      .def_readwrite("split_from", &Options::split_from);
  group.def(py::init([](c10::intrusive_ptr<c10d::Store> store, int rank, int size, c10::intrusive_ptr<Options> options) {
    return c10::make_intrusive<Nccl>(store, rank, size, options);
  }));
  group.def("perform_nocolor_split", [](Nccl&, Device) {});
}
