// A CUDA allocator that passes everything on to PyTorch's own as it is, but for what an allocator of ours has to say.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/headeronly/version.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cuda_arena.h"

// What a version of PyTorch has that an earlier one has not.
#define MONET_SINCE(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace {

namespace native = c10::cuda::CUDACachingAllocator;

class Forwarding : public CUDAAllocator {
 public:
  c10::DeleterFnPtr raw_deleter() const override { return previous->raw_deleter(); }
  bool is_simple_data_ptr(const DataPtr& pointer) const override { return previous->is_simple_data_ptr(pointer); }
  void copy_data(void* to, const void* from, size_t count) const override { previous->copy_data(to, from, count); }
  void init(int count) override { previous->init(count); }
  bool initialized() override { return previous->initialized(); }
  double getMemoryFraction(DeviceIndex device) override { return previous->getMemoryFraction(device); }
  void setMemoryFraction(double part, DeviceIndex device) override { previous->setMemoryFraction(part, device); }
  std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
    return previous->getExpandableSegmentSizes(device);
  }
  void enable(bool value) override { previous->enable(value); }
  bool isEnabled() const override { return previous->isEnabled(); }
  void emptyCache(MempoolId_t pool) override { previous->emptyCache(pool); }
  void cacheInfo(DeviceIndex device, size_t* largest) override { previous->cacheInfo(device, largest); }
  native::DeviceStats getDeviceStats(DeviceIndex device) override { return previous->getDeviceStats(device); }
  void resetAccumulatedStats(DeviceIndex device) override { previous->resetAccumulatedStats(device); }
  void resetPeakStats(DeviceIndex device) override { previous->resetPeakStats(device); }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override { return previous->getMemoryInfo(device); }
  native::SnapshotInfo snapshot(MempoolId_t pool, bool traces) override { return previous->snapshot(pool, traces); }
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override {
    return previous->getPoolUseCount(device, pool);
  }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, std::shared_ptr<CUDAAllocator> of) override {
    previous->createOrIncrefPool(device, pool, std::move(of));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) override {
    previous->setUseOnOOM(device, pool, use);
  }
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override { previous->setNoSplit(device, pool); }
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    return previous->checkPoolLiveAllocations(device, pool, expected);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return previous->getIpcDevPtr(std::move(handle)); }
  bool isHistoryEnabled() override { return previous->isHistoryEnabled(); }
  void recordHistory(bool enabled, native::CreateContextFn context, size_t most, native::RecordContext when, bool clear,
                     const std::vector<std::string>& skipped) override {
    previous->recordHistory(enabled, context, most, when, clear, skipped);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& pairs) override {
    previous->recordAnnotation(pairs);
  }
  void pushCompileContext(std::string& text) override { previous->pushCompileContext(text); }
  void popCompileContext() override { previous->popCompileContext(); }
  void setUserMetadata(const std::string& text) override { previous->setUserMetadata(text); }
  std::string getUserMetadata() override { return previous->getUserMetadata(); }
  void attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) override {
    previous->attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) override {
    previous->attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(DeviceIndex device, DeviceIndex other) override { previous->enablePeerAccess(device, other); }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t count, cudaStream_t stream,
                          bool peer) override {
    return previous->memcpyAsync(to, to_device, from, from_device, count, stream, peer);
  }
  std::shared_ptr<native::AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t pool) override {
    return previous->getCheckpointState(device, pool);
  }
  native::CheckpointDelta setCheckpointPoolState(DeviceIndex device,
                                                 std::shared_ptr<native::AllocatorState> state) override {
    return previous->setCheckpointPoolState(device, std::move(state));
  }
  std::string name() override { return previous->name(); }
#if MONET_SINCE(2, 12)
  void attachOomRejectionObserver(native::OomRejectionObserver observer) override {
    previous->attachOomRejectionObserver(std::move(observer));
  }
#endif
#if MONET_SINCE(2, 13)
  void markCaptureBegin(DeviceIndex device) override { previous->markCaptureBegin(device); }
  void markCaptureEnd(DeviceIndex device) override { previous->markCaptureEnd(device); }
  DataPtr allocateWithAddress(size_t size, void* at) override { return previous->allocateWithAddress(size, at); }
#endif
#if MONET_SINCE(2, 14)
  bool supportsUserMetadata() override { return previous->supportsUserMetadata(); }
  void annotateMemory(const void* pointer, const std::string& text) override {
    previous->annotateMemory(pointer, text);
  }
#endif
};

}  // namespace
