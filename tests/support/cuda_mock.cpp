// A GPU's allocator and streams for a machine that has none, around monet's own CUDA allocator: the one under test is
// compiled in, unchanged. Memory is the host's.
#include "cuda_allocator.cpp"
#include "cuda_mock_streams.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace {

struct Memory {
  size_t bytes;
  int device;
  int64_t stream;                 // that it was requested on
  std::set<int64_t> others;       // that recordStream told of
};
std::map<char*, Memory> memory;
std::vector<std::pair<char*, Memory>> cached;  // freed; used again on the same stream
std::map<std::pair<int, MempoolId_t>, int> pools;
native::DeviceStats stats;
size_t capacity = size_t{1} << 40;

void delete_mock(void* pointer);

// PyTorch's allocator has a lock of its own and may wait for Python's: whoever calls it must not hold ours. Another
// thread can tell; one that has it for a moment is waited for.
void require_unlocked() {
  bool is_free = false;
  std::thread([&] {
    for (int tries = 0; !is_free && tries < 1000; ++tries) {
      is_free = mutex.try_lock();
      if (!is_free) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (is_free) mutex.unlock();
  }).join();
  TORCH_CHECK(is_free, "PyTorch's allocator is called under monet's lock");
}

// PyTorch's allocator as far as ours can see it: blocks of a stream, used again in its order.
class MockAllocator final : public CUDAAllocator {
 public:
  void* get_memory(size_t n, int64_t stream) {
    require_unlocked();
    auto found = std::find_if(cached.begin(), cached.end(), [&](const auto& entry) {
      return entry.second.bytes == n && entry.second.stream == stream && entry.second.device == machine.device;
    });
    char* at;
    if (found != cached.end()) {
      at = found->first;
      cached.erase(found);
    } else {
      TORCH_CHECK_WITH(OutOfMemoryError, static_cast<size_t>(stats.requested_bytes[0].current) + n <= capacity,
                       "CUDA out of memory. Tried to allocate ", n, " bytes");
      at = static_cast<char*>(std::aligned_alloc(512, (n + 511) / 512 * 512));
    }
    memory[at] = {n, machine.device, stream, {}};
    auto& bytes = stats.requested_bytes[0];
    bytes.current += static_cast<int64_t>(n);
    bytes.peak = std::max(bytes.peak, bytes.current);
    journal << "alloc " << n << " on " << stream << "\n";
    return at;
  }
  DataPtr allocate(size_t n) override {
    const c10::Device device(c10::DeviceType::CUDA, static_cast<DeviceIndex>(machine.device));
    if (n == 0) return {nullptr, nullptr, &delete_mock, device};
    void* at = get_memory(n, machine.current[machine.device]);
    return {at, at, &delete_mock, device};
  }
  void* raw_alloc(size_t n) override { return n == 0 ? nullptr : get_memory(n, machine.current[machine.device]); }
  void* raw_alloc_with_stream(size_t n, cudaStream_t stream) override { return get_memory(n, number_of(stream)); }
  void raw_delete(void* pointer) override {
    if (pointer == nullptr) return;
    require_unlocked();
    const auto found = memory.find(static_cast<char*>(pointer));
    TORCH_CHECK(found != memory.end(), "invalid device pointer: ", pointer);
    Memory& block = found->second;
    journal << "free " << block.bytes << "\n";
    // Its next user comes after what the streams do that it was told of, and after nothing else.
    for (const int64_t other : block.others) merge(machine.clocks[block.stream], machine.clocks[other]);
    stats.requested_bytes[0].current -= static_cast<int64_t>(block.bytes);
    block.others.clear();
    cached.emplace_back(found->first, block);
    memory.erase(found);
  }
  void recordStream(const DataPtr& pointer, CUDAStream stream) override {
    require_unlocked();
    if (pointer.get_deleter() != &delete_mock) return;  // as PyTorch's does with what is not its own
    auto found = memory.find(static_cast<char*>(pointer.get()));
    TORCH_CHECK(found != memory.end(), "recordStream of unknown memory");
    found->second.others.insert(stream.id());
    journal << "recordStream " << found->second.bytes << " " << stream.id() << "\n";
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_mock; }
  void copy_data(void* to, const void* from, size_t n) const override {
    journal << "copy_data\n";
    std::memcpy(to, from, n);
  }
  void init(int count) override { journal << "init " << count << "\n"; }
  bool initialized() override { return true; }
  double getMemoryFraction(DeviceIndex) override { return 0.75; }
  void setMemoryFraction(double fraction, DeviceIndex) override { journal << "setMemoryFraction " << fraction << "\n"; }
  std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex) override {
    return {{nullptr, true, 7}};
  }
  void enable(bool value) override { journal << "enable " << value << "\n"; }
  bool isEnabled() const override { return true; }
  void emptyCache(MempoolId_t) override { journal << "emptyCache\n"; }
  void cacheInfo(DeviceIndex, size_t* largest) override { *largest = 4096; }
  void* getBaseAllocation(void* pointer, size_t* size) override {
    const auto found = memory.find(static_cast<char*>(pointer));
    TORCH_CHECK(found != memory.end(), "invalid device pointer: ", pointer);
    *size = found->second.bytes;
    return pointer;
  }
  native::DeviceStats getDeviceStats(DeviceIndex) override { return stats; }
  void resetAccumulatedStats(DeviceIndex) override { journal << "resetAccumulatedStats\n"; }
  void resetPeakStats(DeviceIndex) override { stats.requested_bytes[0].peak = stats.requested_bytes[0].current; }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex) override { return {1, 2}; }
  native::SnapshotInfo snapshot(MempoolId_t, bool) override {
    native::SnapshotInfo info;
    info.segments.resize(memory.size());
    return info;
  }
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)>) override {
    ++pools[{device, pool}];
    journal << "beginAllocateToPool " << pool.second << "\n";
  }
  void endAllocateToPool(DeviceIndex, MempoolId_t pool) override {
    journal << "endAllocateToPool " << pool.second << "\n";
  }
  void releasePool(DeviceIndex device, MempoolId_t pool) override {
    --pools[{device, pool}];
    journal << "releasePool " << pool.second << "\n";
  }
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override {
    require_unlocked();
    journal << "getPoolUseCount " << pool.second << "\n";
    return pools[{device, pool}];
  }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, std::shared_ptr<CUDAAllocator>) override {
    ++pools[{device, pool}];
  }
  void setUseOnOOM(DeviceIndex, MempoolId_t, bool use) override { journal << "setUseOnOOM " << use << "\n"; }
  void setNoSplit(DeviceIndex, MempoolId_t) override { journal << "setNoSplit\n"; }
  bool checkPoolLiveAllocations(DeviceIndex, MempoolId_t, const std::unordered_set<void*>& expected) override {
    return expected.empty();
  }
  native::ShareableHandle shareIpcHandle(void* pointer) override {
    TORCH_CHECK(memory.count(static_cast<char*>(pointer)) == 1, "invalid device pointer: ", pointer);
    return {64, "handle"};
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return std::make_shared<std::string>(handle); }
  bool isHistoryEnabled() override { return true; }
  void recordHistory(bool, native::CreateContextFn, size_t most, native::RecordContext, bool,
                     const std::vector<std::string>&) override {
    journal << "recordHistory " << most << "\n";
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& pairs) override {
    journal << "recordAnnotation " << pairs.size() << "\n";
  }
  void pushCompileContext(std::string& text) override { journal << "pushCompileContext " << text << "\n"; }
  void popCompileContext() override { journal << "popCompileContext\n"; }
  void setUserMetadata(const std::string& text) override { journal << "setUserMetadata " << text << "\n"; }
  std::string getUserMetadata() override { return "metadata"; }
  void attachOutOfMemoryObserver(native::OutOfMemoryObserver) override { journal << "attachOutOfMemoryObserver\n"; }
  void attachAllocatorTraceTracker(native::AllocatorTraceTracker) override {
    journal << "attachAllocatorTraceTracker\n";
  }
  void enablePeerAccess(DeviceIndex, DeviceIndex other) override {
    journal << "enablePeerAccess " << int(other) << "\n";
  }
  cudaError_t memcpyAsync(void*, int, const void*, int, size_t count, cudaStream_t, bool) override {
    journal << "memcpyAsync " << count << "\n";
    return cudaSuccess;
  }
  std::shared_ptr<native::AllocatorState> getCheckpointState(DeviceIndex, MempoolId_t) override {
    return std::make_shared<native::AllocatorState>();
  }
  native::CheckpointDelta setCheckpointPoolState(DeviceIndex, std::shared_ptr<native::AllocatorState> state) override {
    journal << "setCheckpointPoolState " << (state != nullptr) << "\n";
    return {};
  }
  std::string name() override { return "mock"; }
#if MONET_SINCE(2, 12)
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* pointer) override {
    journal << "getContextForPointer " << memory.count(static_cast<char*>(const_cast<void*>(pointer))) << "\n";
    return nullptr;
  }
  void attachOomRejectionObserver(native::OomRejectionObserver) override { journal << "attachOomRejectionObserver\n"; }
#endif
#if MONET_SINCE(2, 13)
  void markCaptureBegin(DeviceIndex) override { journal << "markCaptureBegin\n"; }
  void markCaptureEnd(DeviceIndex) override { journal << "markCaptureEnd\n"; }
  DataPtr allocateWithAddress(size_t n, void*) override { return allocate(n); }
#endif
#if MONET_SINCE(2, 14)
  bool supportsUserMetadata() override { return true; }
  void annotateMemory(const void* pointer, const std::string& text) override {
    journal << "annotateMemory " << memory.count(static_cast<char*>(const_cast<void*>(pointer))) << " " << text << "\n";
  }
#endif
};

MockAllocator& mock() {
  static auto* one = new MockAllocator;
  return *one;
}

void delete_mock(void* pointer) { mock().raw_delete(pointer); }

struct Tensor {
  DataPtr data;
  size_t bytes;
  int64_t block;
};

CUDAAllocator& now() { return *native::allocator.load(); }

}  // namespace

namespace c10::cuda {
namespace CUDACachingAllocator {
std::atomic<CUDAAllocator*> allocator{(c10::SetAllocator(c10::kCUDA, &mock(), highest_priority), &mock())};
}
cudaStream_t CUDAStream::stream() const { return handle_of(stream_.id()); }
CUDAStream getCurrentCUDAStream(DeviceIndex device) {
  const int of = device < 0 ? machine.device : device;
  machine.current.try_emplace(of, of * 100);
  return stream_of(machine.current[of]);
}
DeviceIndex current_device() { return static_cast<DeviceIndex>(machine.device); }
DeviceIndex ExchangeDevice(DeviceIndex device) {
  const int before = machine.device;
  machine.device = device;
  return static_cast<DeviceIndex>(before);
}
#if MONET_SINCE(2, 14)
CUDAErrorLogCapture::CUDAErrorLogCapture() noexcept = default;
std::string CUDAErrorLogCapture::get_error_log_suffix() noexcept { return ""; }
void c10_cuda_check_implementation(const int32_t error, const char*, const char*, const uint32_t, const bool,
                                   CUDAErrorLogCapture*) {
#else
void c10_cuda_check_implementation(const int32_t error, const char*, const char*, const uint32_t, const bool) {
#endif
  TORCH_CHECK(error == 0, "CUDA error ", error);
}
}  // namespace c10::cuda

extern "C" {

// What a test does. Streams are numbers; stream s is of device s / 100.
void mock_device(int device) { machine.device = device; }
void mock_stream(int64_t stream) { machine.current[machine.stream_device(stream)] = stream; }
void mock_busy(int64_t stream, int yes) { yes ? (void)machine.busy.insert(stream) : (void)machine.busy.erase(stream); }
void mock_capturing(int64_t stream, int yes) {
  yes ? (void)machine.capturing.insert(stream) : (void)machine.capturing.erase(stream);
}
void mock_capacity(int64_t bytes) { capacity = static_cast<size_t>(bytes); }
// As many of the two ways to PyTorch's allocator as lead to ours.
int mock_is_installed() {
  return (native::allocator.load() == &planned_allocator()) + (c10::GetAllocator(c10::kCUDA) == &planned_allocator());
}

Tensor* mock_allocate(int64_t n) {
  return guarded(static_cast<Tensor*>(nullptr), [&] {
    return new Tensor{now().allocate(static_cast<size_t>(n)), static_cast<size_t>(n), ++machine.last_block};
  });
}
void mock_free(Tensor* tensor) { delete tensor; }
int64_t mock_address(const Tensor* tensor) { return reinterpret_cast<int64_t>(tensor->data.get()); }
int mock_is_plain(const Tensor* tensor) { return tensor->data.get_deleter() == now().raw_deleter(); }
int mock_record_stream(Tensor* tensor, int64_t stream) {
  return guarded(1, [&] { return now().recordStream(tensor->data, stream_of(stream)), 0; });
}
int64_t mock_raw_alloc(int64_t n, int64_t stream) {
  return guarded(int64_t{-1}, [&] {
    const auto bytes = static_cast<size_t>(n);
    void* at = stream < 0 ? now().raw_alloc(bytes) : now().raw_alloc_with_stream(bytes, handle_of(stream));
    return reinterpret_cast<int64_t>(at);
  });
}
int64_t mock_raw_allocate(int64_t n) {
  return guarded(int64_t{-1}, [&] { return reinterpret_cast<int64_t>(now().raw_allocate(static_cast<size_t>(n))); });
}
int mock_raw_delete(int64_t pointer) {
  return guarded(1, [&] { return now().raw_delete(reinterpret_cast<void*>(pointer)), 0; });
}
void mock_begin_pool(int64_t pool, int64_t stream) {
  now().beginAllocateToPool(0, {0, static_cast<c10::CaptureId_t>(pool)},
                            [=](cudaStream_t asked) { return asked == handle_of(stream); });
}
void mock_end_pool(int64_t pool) { now().endAllocateToPool(0, {0, static_cast<c10::CaptureId_t>(pool)}); }
void mock_release_pool(int64_t pool) { now().releasePool(0, {0, static_cast<c10::CaptureId_t>(pool)}); }
void mock_share_pool(int64_t pool) { now().createOrIncrefPool(0, {0, static_cast<c10::CaptureId_t>(pool)}, nullptr); }

int64_t mock_live() { return now().getDeviceStats(0).requested_bytes[0].current; }
int64_t mock_peak() { return now().getDeviceStats(0).requested_bytes[0].peak; }
void mock_reset_peak() { now().resetPeakStats(0); }
int64_t mock_base(int64_t pointer, int64_t* size) {
  return guarded(int64_t{-1}, [&] {
    size_t bytes = 0;
    void* base = now().getBaseAllocation(reinterpret_cast<void*>(pointer), &bytes);
    *size = static_cast<int64_t>(bytes);
    return reinterpret_cast<int64_t>(base);
  });
}
int64_t mock_ipc_offset(int64_t pointer) { return now().shareIpcHandle(reinterpret_cast<void*>(pointer)).offset; }

// The stream works on the tensor. How many earlier pieces of work on the same bytes, as another block, race with it.
int64_t mock_use(const Tensor* tensor, int64_t stream) {
  const auto* begin = static_cast<const char*>(tensor->data.get());
  const char* end = begin + tensor->bytes;
  Clock& clock = machine.clocks[stream];
  const int64_t races = std::count_if(machine.accesses.begin(), machine.accesses.end(), [&](const Access& one) {
    return one.block != tensor->block && one.begin < end && begin < one.end && clock[one.stream] < one.time;
  });
  machine.accesses.push_back({begin, end, stream, ++clock[stream], tensor->block});
  return races;
}

// What earlier tests left: nothing of theirs is used again.
void mock_forget() {
  for (auto& [at, block] : cached) std::free(at);
  cached.clear();
  machine = Machine{};
  journal.str("");
}

// Work on `to` comes after work on `from`, as a user of streams says it.
void mock_order(int64_t from, int64_t to) { merge(machine.clocks[to], machine.clocks[from]); }

// Everything that is passed on as it is, called once. Each line says what PyTorch's allocator saw or answered.
const char* mock_forwards() {
  static std::string text;
  journal.str("");
  CUDAAllocator& one = now();
  auto& out = journal;
  char from[4] = "abc", to[4] = "";
  size_t largest = 0;
  std::string context = "context";
  one.copy_data(to, from, 4);
  out << to << "\n";
  one.init(3);
  one.setMemoryFraction(0.5, 0);
  one.enable(true);
  one.emptyCache({0, 0});
  one.cacheInfo(0, &largest);
  one.resetAccumulatedStats(0);
  one.setUseOnOOM(0, {0, 1}, true);
  one.setNoSplit(0, {0, 1});
  one.recordHistory(true, nullptr, 5, native::RecordContext::ALL, false, {});
  one.recordAnnotation({{"a", "b"}});
  one.pushCompileContext(context);
  one.popCompileContext();
  one.setUserMetadata("text");
  one.attachOutOfMemoryObserver({});
  one.attachAllocatorTraceTracker({});
  one.enablePeerAccess(0, 1);
  (void)one.memcpyAsync(nullptr, 0, nullptr, 0, 9, nullptr, false);
  (void)one.setCheckpointPoolState(0, one.getCheckpointState(0, {0, 1}));
  out << one.initialized() << one.isEnabled() << one.isHistoryEnabled() << one.checkPoolLiveAllocations(0, {0, 1}, {})
      << " " << one.getMemoryFraction(0) << " " << largest << " " << one.getExpandableSegmentSizes(0).at(0).total_size
      << " " << one.getMemoryInfo(0).second << " " << one.snapshot({0, 0}, false).segments.size() << " "
      << one.getUserMetadata() << " " << one.name() << " "
      << *std::static_pointer_cast<std::string>(one.getIpcDevPtr("ipc")) << "\n";
#if MONET_SINCE(2, 12)
  one.attachOomRejectionObserver({});
#endif
#if MONET_SINCE(2, 13)
  one.markCaptureBegin(0);
  one.markCaptureEnd(0);
  out << (one.allocateWithAddress(8, nullptr).get() != nullptr) << "\n";
#endif
#if MONET_SINCE(2, 14)
  one.annotateMemory(nullptr, "text");
  out << one.supportsUserMetadata() << "\n";
#endif
  text = journal.str();
  return text.c_str();
}

// What PyTorch's allocator and the streams were asked since the last time.
const char* mock_journal() {
  static std::string text;
  text = journal.str();
  journal.str("");
  return text.c_str();
}

}  // extern "C"
