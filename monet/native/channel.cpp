// A second memory on a disk: an unlinked file, or one that stays, and a thread that copies to and from it while operators run.
//
// Copies are executed in the order in which they are issued, in chunks, by direct I/O where the file system has it, so
// that the page cache holds nothing of them. Where it has not, what was written is forced out and dropped from the page
// cache, chunk by chunk. Memory and file offsets are multiples of kAlign, and lengths are rounded up to it: whoever
// places the memory leaves that room.
//
// Before a fork the queue is empty: direct I/O must not run beside one, and the thread does not live in the child.
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <set>
#include <string>
#include <thread>

namespace {

constexpr int64_t kAlign = 4096;
constexpr int64_t kChunk = int64_t{4} << 20;
constexpr int kInMemory = -1000;  // the folder is no disk
constexpr int kClosed = -1001;
constexpr int kShort = -1002;     // a read ended before its length

struct Copy {
  bool write;
  char* memory;
  int64_t offset;
  int64_t bytes;
};

struct Channel {
  int file = -1;
  bool direct = true;
  int64_t bytes = 0;
  std::mutex mutex;
  std::condition_variable issued;    // the thread waits for it
  std::condition_variable advanced;  // others wait for it
  std::deque<Copy> queue;
  int64_t tickets = 0;  // issued so far
  int64_t done = 0;     // of them, those that are over
  int error = 0;        // of the first copy that failed; all later ones are dropped
  bool ending = false;
  bool alive = true;  // false in a forked child
  // What happened, in bytes and nanoseconds.
  int64_t written = 0, read = 0, write_ns = 0, read_ns = 0;
  // For tests: each chunk waits so long; the chunk of this number fails with this error.
  std::atomic<int64_t> delay_us{0};
  int64_t chunks = 0, failing_chunk = -1;
  int failing_error = 0;
  std::thread thread;
};

std::mutex channels_mutex;
std::set<Channel*>& channels() {
  static auto* all = new std::set<Channel*>;  // never destroyed: the process may end while a thread copies
  return *all;
}

int64_t rounded(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

int64_t nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// One chunk, whole; 0 or an error.
int copy_chunk(Channel& channel, bool write, char* memory, int64_t offset, int64_t bytes) {
  const int64_t delay = channel.delay_us.load();
  if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
  if (channel.chunks++ == channel.failing_chunk) return channel.failing_error;
  const int64_t begin = offset, whole = bytes;
  while (bytes > 0) {
    const ssize_t n = write ? pwrite(channel.file, memory, static_cast<size_t>(bytes), offset)
                            : pread(channel.file, memory, static_cast<size_t>(bytes), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return kShort;
    memory += n;
    offset += n;
    bytes -= n;
  }
  if (!channel.direct) {
    if (write && sync_file_range(channel.file, begin, whole,
                                 SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER) != 0)
      return errno;
    posix_fadvise(channel.file, begin, whole, POSIX_FADV_DONTNEED);
  }
  return 0;
}

void work(Channel* channel) {
  std::unique_lock<std::mutex> lock(channel->mutex);
  while (true) {
    channel->issued.wait(lock, [&] { return channel->ending || !channel->queue.empty(); });
    if (channel->queue.empty()) return;
    const Copy copy = channel->queue.front();
    int error = channel->error;
    lock.unlock();
    const int64_t began = nanoseconds(), whole = rounded(copy.bytes);
    for (int64_t at = 0; at < whole && error == 0; at += kChunk)
      error = copy_chunk(*channel, copy.write, copy.memory + at, copy.offset + at, std::min(kChunk, whole - at));
    const int64_t took = nanoseconds() - began;
    lock.lock();
    channel->queue.pop_front();
    if (channel->error == 0) channel->error = error;
    if (error == 0) {
      (copy.write ? channel->written : channel->read) += copy.bytes;
      (copy.write ? channel->write_ns : channel->read_ns) += took;
    }
    ++channel->done;
    channel->advanced.notify_all();
  }
}

void drain(Channel& channel, std::unique_lock<std::mutex>& lock) {
  channel.advanced.wait(lock, [&] { return channel.done == channel.tickets; });
}

void before_fork() {
  channels_mutex.lock();
  for (Channel* channel : channels()) {
    std::unique_lock<std::mutex> lock(channel->mutex);
    drain(*channel, lock);
    lock.release();  // held until after the fork
  }
}

void after_fork() {
  for (Channel* channel : channels()) channel->mutex.unlock();
  channels_mutex.unlock();
}

void after_fork_in_child() {
  for (Channel* channel : channels()) {
    channel->alive = false;
    channel->mutex.unlock();
  }
  channels_mutex.unlock();
}

int open_unlinked(const char* folder, int flags) {
  int file = open(folder, O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC | flags, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return file;
  std::string path = std::string(folder) + "/.monet-XXXXXX";  // a file system without O_TMPFILE
  file = mkostemp(path.data(), O_CLOEXEC | flags);
  if (file >= 0) unlink(path.c_str());
  return file;
}

// A file that stays, with what it holds; the caller has it locked.
int open_named(const char* path, int flags) { return open(path, O_RDWR | O_CLOEXEC | flags); }

bool is_in_memory(const char* folder) {
  struct statfs found;
  if (statfs(folder, &found) != 0) return false;
  return found.f_type == TMPFS_MAGIC || found.f_type == RAMFS_MAGIC || found.f_type == HUGETLBFS_MAGIC;
}

int issue(Channel* channel, Copy copy, int64_t* ticket) {
  std::lock_guard<std::mutex> lock(channel->mutex);
  if (!channel->alive) return kClosed;
  if (channel->error != 0) return channel->error;
  if (copy.offset < 0 || copy.offset % kAlign != 0 || copy.bytes < 0 || copy.offset + rounded(copy.bytes) > channel->bytes)
    return EINVAL;
  if (channel->direct && reinterpret_cast<uintptr_t>(copy.memory) % kAlign != 0) return EINVAL;
  channel->queue.push_back(copy);
  *ticket = ++channel->tickets;
  channel->issued.notify_one();
  return 0;
}

}  // namespace

extern "C" {

// A channel to `bytes` bytes in `folder`, all of them set aside on the disk. `name`: of a file there that stays; nullptr:
// it has none. `buffered`: without direct I/O. nullptr: *error says why, an errno or one of the above.
Channel* monet_channel_open(const char* folder, const char* name, int64_t bytes, int buffered, int* error) {
  *error = 0;
  if (is_in_memory(folder)) {
    *error = kInMemory;
    return nullptr;
  }
  auto* channel = new Channel;
  channel->bytes = rounded(bytes);
  channel->direct = buffered == 0;
  const auto open_file = [&](int flags) {
    return name == nullptr ? open_unlinked(folder, flags) : open_named((std::string(folder) + "/" + name).c_str(), flags);
  };
  channel->file = open_file(channel->direct ? O_DIRECT : 0);
  if (channel->file < 0 && channel->direct && errno == EINVAL) {
    channel->direct = false;
    channel->file = open_file(0);
  }
  if (channel->file < 0) *error = errno;
  if (*error == 0 && channel->bytes > 0) *error = posix_fallocate(channel->file, 0, channel->bytes);
  if (*error != 0) {
    if (channel->file >= 0) close(channel->file);
    delete channel;
    return nullptr;
  }
  static const int registered = pthread_atfork(before_fork, after_fork, after_fork_in_child);
  (void)registered;
  channel->thread = std::thread(work, channel);
  std::lock_guard<std::mutex> lock(channels_mutex);
  channels().insert(channel);
  return channel;
}

// The file, for whoever maps it; it stays the channel's to close.
int monet_channel_file(const Channel* channel) { return channel->file; }

int monet_channel_is_direct(const Channel* channel) { return channel->direct ? 1 : 0; }

// Issues a copy; its number goes to *ticket. 0 or an error.
int monet_channel_write(Channel* channel, void* memory, int64_t offset, int64_t bytes, int64_t* ticket) {
  return issue(channel, {true, static_cast<char*>(memory), offset, bytes}, ticket);
}

int monet_channel_read(Channel* channel, void* memory, int64_t offset, int64_t bytes, int64_t* ticket) {
  return issue(channel, {false, static_cast<char*>(memory), offset, bytes}, ticket);
}

// Waits `most_ms` for a copy. 0: it is over; 1: not yet; else an error, of this copy or one before.
int monet_channel_wait(Channel* channel, int64_t ticket, int64_t most_ms) {
  std::unique_lock<std::mutex> lock(channel->mutex);
  if (!channel->alive) return kClosed;
  const bool over = channel->advanced.wait_for(lock, std::chrono::milliseconds(most_ms),
                                               [&] { return channel->done >= ticket; });
  return !over ? 1 : channel->error;
}

// Waits until nothing is copied any more.
void monet_channel_drain(Channel* channel) {
  std::unique_lock<std::mutex> lock(channel->mutex);
  if (channel->alive) drain(*channel, lock);
}

// Forgets the error of a copy that failed: what the file holds is not to be read then.
void monet_channel_forget(Channel* channel) {
  std::lock_guard<std::mutex> lock(channel->mutex);
  channel->error = 0;
}

// Bytes written and read, and the nanoseconds of both.
void monet_channel_statistics(Channel* channel, int64_t* out) {
  std::lock_guard<std::mutex> lock(channel->mutex);
  out[0] = channel->written;
  out[1] = channel->read;
  out[2] = channel->write_ns;
  out[3] = channel->read_ns;
}

// For tests: each chunk waits `delay_us`; the chunk of that number, from the first one on, fails.
void monet_channel_disturb(Channel* channel, int64_t delay_us, int64_t failing_chunk, int error) {
  std::lock_guard<std::mutex> lock(channel->mutex);
  channel->delay_us.store(delay_us);
  channel->failing_chunk = failing_chunk < 0 ? -1 : channel->chunks + failing_chunk;
  channel->failing_error = error;
}

void monet_channel_close(Channel* channel) {
  {
    std::lock_guard<std::mutex> lock(channels_mutex);
    channels().erase(channel);
  }
  if (channel->alive) {
    {
      std::unique_lock<std::mutex> lock(channel->mutex);
      channel->ending = true;
      channel->issued.notify_one();
    }
    channel->thread.join();
  } else {
    channel->thread.detach();  // it is not there in a forked child
  }
  close(channel->file);
  if (channel->alive) delete channel;  // a child's copy may have a mutex in any state
}

}  // extern "C"
