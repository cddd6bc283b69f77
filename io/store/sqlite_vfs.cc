// SPDX-License-Identifier: Apache-2.0
//
// The frames of the log carry sums over their pages, and each sum continues the one before. SQLite
// has computed them without the seals when it hands a page to the VFS. So a frame is written as
// follows:
//   1. SQLite writes the frame's header. The VFS holds it back.
//   2. SQLite writes the frame's page. The VFS seals it, computes the header's sum again from the
//      header of the frame before, and writes both at once.
// A page that is written without a header replaces that of an earlier frame of the same
// transaction; the VFS seals it. SQLite then corrects the sums of all frames from there on, from
// the contents of the file, and writes headers alone; these are right as they are.
//
// SQLite also keeps the running sum in shared memory, computed without the seals. Only a process
// that appends to the log while this one has it open would start from it; the store's lock prevents
// that.

#include "io/store/sqlite_vfs.h"

#include <sqlite3.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "io/store/sqlite_page.h"

namespace spillway::io {
namespace {

constexpr char kName[] = "spillway";
constexpr auto kPage = static_cast<int>(kSqlitePageBytes);
constexpr auto kFrame = static_cast<int64_t>(kFrameBytes);
constexpr auto kFrameHeader = static_cast<int64_t>(kFrameHeaderBytes);
constexpr auto kWalHeader = static_cast<int64_t>(kWalHeaderBytes);
constexpr int64_t kDatabaseHeaderBytes = 100;

using FrameHeader = std::array<std::byte, kFrameHeaderBytes>;

SqliteHook& Hook() {
  static SqliteHook& hook = *new SqliteHook;
  return hook;
}

int& WriteErrno() {
  thread_local int error = 0;
  return error;
}

std::string& BrokenSeal() {
  thread_local std::string place;
  return place;
}

int BrokenSealAt(const char* path, int64_t offset, uint64_t number) {
  BrokenSeal() = absl::StrCat("page ", number, " at offset ", offset, " of ", path,
                              " is damaged: it is not what was written there");
  return SQLITE_IOERR_DATA;
}

// Tells a file from every other one that exists on this machine.
struct Inode {
  dev_t device = 0;
  ino_t number = 0;
  bool operator==(const Inode&) const = default;
};

// Returns nullopt if there is no file at the path.
std::optional<Inode> InodeAt(const char* path) {
  struct stat info;
  if (::stat(path, &info) != 0) return std::nullopt;
  return Inode{info.st_dev, info.st_ino};
}

// Lies behind SQLite's own file object in memory (Slot).
class VfsFile {
 public:
  VfsFile(sqlite3_file* real, const char* path, int flags, int opened_flags)
      : real_(real),
        path_(path ? path : ""),
        is_database_((flags & SQLITE_OPEN_MAIN_DB) != 0),
        is_log_((flags & SQLITE_OPEN_WAL) != 0),
        inode_(is_log_ ? InodeAt(path_) : std::nullopt),
        fell_back_to_reading_((flags & SQLITE_OPEN_READWRITE) != 0 &&
                              (opened_flags & SQLITE_OPEN_READONLY) != 0) {}

  sqlite3_file* real() const { return real_; }
  int Close();
  int Read(void* out, int size, int64_t offset);
  int Write(const void* data, int size, int64_t offset);
  int Truncate(int64_t size);
  int Sync(int flags);
  int Size(sqlite3_int64* size);
  int Lock(int level);

 private:
  int ReadRaw(void* out, int size, int64_t offset);
  int WriteRaw(std::span<std::byte> bytes, int64_t offset);
  int ReadDatabase(std::byte* out, int size, int64_t offset);
  int ReadLogPage(std::byte* out, int64_t offset);
  int WriteLog(const std::byte* data, int size, int64_t offset);
  int WriteLogPage(const std::byte* page, int64_t offset);
  int SumBefore(int64_t frame_offset, WalSum* sum);
  int WriteHeld();
  static bool IsLogPage(int size, int64_t offset) {
    return size == kPage && offset >= kWalHeader && (offset - kWalHeader) % kFrame == kFrameHeader;
  }

  sqlite3_file* const real_;
  const char* const path_;  // SQLite keeps the text as long as the file is open
  const bool is_database_;
  const bool is_log_;
  const std::optional<Inode> inode_;  // the log's, when it was opened
  const bool fell_back_to_reading_;
  bool has_unsynced_ = false;        // writes
  std::optional<FrameHeader> held_;  // in the log: a frame's header whose page was not written yet
  int64_t held_offset_ = 0;
  int64_t next_frame_ = -1;  // offset of the frame that would continue next_sum_
  WalSum next_sum_;
  bool big_endian_ = false;  // valid if next_sum_ is
};

int Meet(SqliteCall::Op op, const char* path, int64_t offset, std::span<std::byte> bytes = {}) {
  return Hook() ? Hook()({op, path, offset, bytes}) : 0;
}

int Failed(int error, int code) {
  errno = error;
  return error == ENOSPC ? SQLITE_FULL : code;
}

// Returns false if sealing would overwrite content of the page.
bool MayBeSealed(std::span<const std::byte> page, uint64_t number) {
  return number != 1 || HasRoomForSeals(page);
}

int VfsFile::ReadRaw(void* out, int size, int64_t offset) {
  int code = real_->pMethods->xRead(real_, out, size, offset);
  if (code == SQLITE_OK || code == SQLITE_IOERR_SHORT_READ) {
    const int met = Meet(SqliteCall::Op::kRead, path_, offset,
                         {static_cast<std::byte*>(out), static_cast<size_t>(size)});
    if (met > 0) code = Failed(met, met == EIO ? SQLITE_IOERR_CORRUPTFS : SQLITE_IOERR_READ);
  }
  // The system's VFS calls an EIO this, and SQLite would report it as a damaged database.
  return code == SQLITE_IOERR_CORRUPTFS ? SQLITE_IOERR_READ : code;
}

int VfsFile::WriteRaw(std::span<std::byte> bytes, int64_t offset) {
  const int met = Meet(SqliteCall::Op::kWrite, path_, offset, bytes);
  if (met == kSqliteCallIsDropped) return SQLITE_OK;
  if (met > 0) return Failed(met, SQLITE_IOERR_WRITE);
  has_unsynced_ = true;
  const int code =
      real_->pMethods->xWrite(real_, bytes.data(), static_cast<int>(bytes.size()), offset);
  if (code != SQLITE_OK) WriteErrno() = errno;
  return code;
}

int VfsFile::ReadDatabase(std::byte* out, int size, int64_t offset) {
  if (offset + size <= kDatabaseHeaderBytes) return ReadRaw(out, size, offset);
  const int64_t first = offset / kPage * kPage;
  if (first == offset && size == kPage) {
    const int code = ReadRaw(out, size, offset);
    if (code == SQLITE_IOERR_SHORT_READ) {
      // SQLite expects that a page beyond the end reads as zeros. A page of which only a part is
      // there is damaged.
      sqlite3_int64 end = 0;
      const int size_code = Size(&end);
      return size_code != SQLITE_OK || end <= offset
                 ? code
                 : BrokenSealAt(path_, offset, offset / kPage + 1);
    }
    const auto number = static_cast<uint64_t>(offset / kPage + 1);
    if (code != SQLITE_OK || IsSealed({out, kSqlitePageBytes}, number)) return code;
    return BrokenSealAt(path_, offset, number);
  }
  int result = SQLITE_OK;
  for (int64_t page_offset = first; page_offset < offset + size; page_offset += kPage) {
    std::array<std::byte, kSqlitePageBytes> page;
    const int code = ReadDatabase(page.data(), kPage, page_offset);
    if (code != SQLITE_OK && code != SQLITE_IOERR_SHORT_READ) return code;
    if (code != SQLITE_OK) result = code;
    const int64_t from = std::max(offset, page_offset);
    const int64_t to = std::min(offset + size, page_offset + kPage);
    std::memcpy(out + (from - offset), page.data() + (from - page_offset),
                static_cast<size_t>(to - from));
  }
  return result;
}

int VfsFile::ReadLogPage(std::byte* out, int64_t offset) {
  std::array<std::byte, kFrameBytes> frame;
  const int code = ReadRaw(frame.data(), static_cast<int>(kFrameBytes), offset - kFrameHeader);
  std::memcpy(out, frame.data() + kFrameHeaderBytes, kSqlitePageBytes);
  const uint32_t number = FramePageNumber(frame);
  if (code != SQLITE_OK || IsSealed({out, kSqlitePageBytes}, number)) return code;
  return BrokenSealAt(path_, offset, number);
}

int VfsFile::Read(void* out, int size, int64_t offset) {
  if (const int code = WriteHeld(); code != SQLITE_OK) return code;
  auto* bytes = static_cast<std::byte*>(out);
  if (is_database_) return ReadDatabase(bytes, size, offset);
  if (is_log_ && IsLogPage(size, offset)) return ReadLogPage(bytes, offset);
  return ReadRaw(out, size, offset);
}

// Writes a header that was held back, and whose page did not follow.
int VfsFile::WriteHeld() {
  if (!held_) return SQLITE_OK;
  FrameHeader header = *held_;
  held_.reset();
  next_frame_ = -1;
  return WriteRaw(header, held_offset_);
}

int VfsFile::SumBefore(int64_t frame_offset, WalSum* sum) {
  if (next_frame_ != frame_offset) {
    std::array<std::byte, kWalHeaderBytes> header;
    int code = ReadRaw(header.data(), kWalHeader, 0);
    if (code != SQLITE_OK) return code;
    big_endian_ = WalSumsAreBigEndian(header);
    next_sum_ = ReadWalHeaderSum(header);
    if (frame_offset > kWalHeader) {
      FrameHeader before;
      code = ReadRaw(before.data(), kFrameHeader, frame_offset - kFrame);
      if (code != SQLITE_OK) return code;
      next_sum_ = ReadFrameSum(before);
    }
  }
  *sum = next_sum_;
  return SQLITE_OK;
}

int VfsFile::WriteLogPage(const std::byte* page, int64_t offset) {
  const int64_t frame_offset = offset - kFrameHeader;
  std::array<std::byte, kFrameBytes> frame;
  std::memcpy(frame.data() + kFrameHeaderBytes, page, kSqlitePageBytes);
  const std::span<std::byte> content(frame.data() + kFrameHeaderBytes, kSqlitePageBytes);
  if (!held_ || held_offset_ != frame_offset) {
    if (const int code = WriteHeld(); code != SQLITE_OK) return code;
    next_frame_ = -1;
    const int code = ReadRaw(frame.data(), kFrameHeader, frame_offset);
    if (code != SQLITE_OK) return code;
    SealPage(content, FramePageNumber(frame));
    return WriteRaw(content, offset);
  }
  std::memcpy(frame.data(), held_->data(), kFrameHeaderBytes);
  held_.reset();
  WalSum before;
  if (const int code = SumBefore(frame_offset, &before); code != SQLITE_OK) return code;
  if (!MayBeSealed(content, FramePageNumber(frame))) return SQLITE_IOERR_WRITE;
  SealPage(content, FramePageNumber(frame));
  next_sum_ = SumFrame(frame, before, big_endian_);
  const int code = WriteRaw(frame, frame_offset);
  next_frame_ = code == SQLITE_OK ? frame_offset + kFrame : -1;
  return code;
}

int VfsFile::WriteLog(const std::byte* data, int size, int64_t offset) {
  if (IsLogPage(size, offset)) return WriteLogPage(data, offset);
  if (const int code = WriteHeld(); code != SQLITE_OK) return code;
  if (size == kFrameHeader && (offset - kWalHeader) % kFrame == 0) {
    std::memcpy(held_.emplace().data(), data, kFrameHeaderBytes);
    held_offset_ = offset;
    return SQLITE_OK;
  }
  next_frame_ = -1;
  std::array<std::byte, kWalHeaderBytes> header;
  // The only other write is the log's header: an SQLite that need not pad sectors writes nothing
  // else to the log.
  if (size != kWalHeader || offset != 0) return SQLITE_IOERR_WRITE;
  std::memcpy(header.data(), data, kWalHeaderBytes);
  return WriteRaw(header, 0);
}

int VfsFile::Write(const void* data, int size, int64_t offset) {
  const auto* bytes = static_cast<const std::byte*>(data);
  if (is_log_) return WriteLog(bytes, size, offset);
  if (is_database_) {
    if (size != kPage || offset % kPage != 0) return SQLITE_IOERR_WRITE;
    std::array<std::byte, kSqlitePageBytes> page;
    std::memcpy(page.data(), bytes, kSqlitePageBytes);
    const auto number = static_cast<uint64_t>(offset / kPage + 1);
    if (!MayBeSealed(page, number)) return SQLITE_IOERR_WRITE;
    SealPage(page, number);
    return WriteRaw(page, offset);
  }
  if (!Hook()) return real_->pMethods->xWrite(real_, data, size, offset);
  std::string copy(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
  return WriteRaw(std::as_writable_bytes(std::span(copy)), offset);
}

int VfsFile::Truncate(int64_t size) {
  if (const int code = WriteHeld(); code != SQLITE_OK) return code;
  next_frame_ = -1;
  const int met = Meet(SqliteCall::Op::kTruncate, path_, size);
  if (met == kSqliteCallIsDropped) return SQLITE_OK;
  if (met > 0) return Failed(met, SQLITE_IOERR_TRUNCATE);
  return real_->pMethods->xTruncate(real_, size);
}

// A transaction in a log that is no longer at its path would be lost with this process. A
// checkpoint syncs a log to which nothing was written since: that log is good for moving its pages,
// wherever its name is.
int VfsFile::Sync(int flags) {
  if (const int code = WriteHeld(); code != SQLITE_OK) return code;
  const bool has_unsynced = std::exchange(has_unsynced_, false);
  if (is_log_ && has_unsynced && (!inode_ || InodeAt(path_) != inode_)) return kSqliteLogIsGone;
  const int met = Meet(SqliteCall::Op::kSync, path_, 0);
  if (met == kSqliteCallIsDropped) return SQLITE_OK;
  if (met > 0) return Failed(met, SQLITE_IOERR_FSYNC);
  return real_->pMethods->xSync(real_, flags);
}

int VfsFile::Size(sqlite3_int64* size) {
  if (const int code = WriteHeld(); code != SQLITE_OK) return code;
  return real_->pMethods->xFileSize(real_, size);
}

// To read a log without an index in shared memory, SQLite locks the database exclusively. The
// kernel gives no such lock on a file that is opened to read because this user may not write it. It
// is not needed there: StoreView holds the store's lock. A reader beside a process that has the
// store asks for no writing, and must not take itself for alone.
int VfsFile::Lock(int level) {
  if (is_database_ && fell_back_to_reading_ && level > SQLITE_LOCK_SHARED) return SQLITE_OK;
  return real_->pMethods->xLock(real_, level);
}

int VfsFile::Close() {
  const int held = WriteHeld();
  const int closed = real_->pMethods->xClose(real_);
  return held != SQLITE_OK ? held : closed;
}

// The memory that SQLite allocates for a file: its own part, ours, and at kRealAt the real VFS's.
struct Slot {
  sqlite3_file base;
  alignas(VfsFile) std::byte file[sizeof(VfsFile)];
};
constexpr size_t kRealAt = (sizeof(Slot) + 15) / 16 * 16;

VfsFile& Of(sqlite3_file* file) {
  return *std::launder(reinterpret_cast<VfsFile*>(reinterpret_cast<Slot*>(file)->file));
}

int CloseFile(sqlite3_file* file) {
  VfsFile& ours = Of(file);
  const int code = ours.Close();
  ours.~VfsFile();
  return code;
}

// Forwards a call to the real file.
template <auto Method, typename... Args>
int PassOn(sqlite3_file* file, Args... args) {
  sqlite3_file* real = Of(file).real();
  return (real->pMethods->*Method)(real, args...);
}

const sqlite3_io_methods kMethods = {
    .iVersion = 3,
    .xClose = CloseFile,
    .xRead = [](sqlite3_file* f, void* out, int size,
                sqlite3_int64 offset) { return Of(f).Read(out, size, offset); },
    .xWrite = [](sqlite3_file* f, const void* data, int size,
                 sqlite3_int64 offset) { return Of(f).Write(data, size, offset); },
    .xTruncate = [](sqlite3_file* f, sqlite3_int64 size) { return Of(f).Truncate(size); },
    .xSync = [](sqlite3_file* f, int flags) { return Of(f).Sync(flags); },
    .xFileSize = [](sqlite3_file* f, sqlite3_int64* size) { return Of(f).Size(size); },
    .xLock = [](sqlite3_file* f, int level) { return Of(f).Lock(level); },
    .xUnlock = PassOn<&sqlite3_io_methods::xUnlock, int>,
    .xCheckReservedLock = PassOn<&sqlite3_io_methods::xCheckReservedLock, int*>,
    .xFileControl = PassOn<&sqlite3_io_methods::xFileControl, int, void*>,
    .xSectorSize = PassOn<&sqlite3_io_methods::xSectorSize>,
    // Says that a write does not harm the bytes beside it, so that SQLite does not pad frames to
    // the end of a sector.
    .xDeviceCharacteristics =
        [](sqlite3_file* f) {
          return PassOn<&sqlite3_io_methods::xDeviceCharacteristics>(f) |
                 SQLITE_IOCAP_POWERSAFE_OVERWRITE;
        },
    .xShmMap = PassOn<&sqlite3_io_methods::xShmMap, int, int, int, void volatile**>,
    .xShmLock = PassOn<&sqlite3_io_methods::xShmLock, int, int, int>,
    .xShmBarrier = [](sqlite3_file* f) { Of(f).real()->pMethods->xShmBarrier(Of(f).real()); },
    .xShmUnmap = PassOn<&sqlite3_io_methods::xShmUnmap, int>,
    // Pages are never mapped, because a page must be checked when it is read.
    .xFetch =
        [](sqlite3_file*, sqlite3_int64, int, void** page) {
          *page = nullptr;
          return SQLITE_OK;
        },
    .xUnfetch = [](sqlite3_file*, sqlite3_int64, void*) { return SQLITE_OK; },
};

sqlite3_vfs* Real(sqlite3_vfs* vfs) { return static_cast<sqlite3_vfs*>(vfs->pAppData); }

int OpenFile(sqlite3_vfs* vfs, const char* path, sqlite3_file* file, int flags, int* out_flags) {
  auto* slot = reinterpret_cast<Slot*>(file);
  auto* real = reinterpret_cast<sqlite3_file*>(reinterpret_cast<std::byte*>(file) + kRealAt);
  slot->base.pMethods = nullptr;
  int opened_flags = 0;
  const int code = Real(vfs)->xOpen(Real(vfs), path, real, flags, &opened_flags);
  if (out_flags) *out_flags = opened_flags;
  if (code != SQLITE_OK) {
    if (real->pMethods) real->pMethods->xClose(real);
    return code;
  }
  new (slot->file) VfsFile(real, path, flags, opened_flags);
  slot->base.pMethods = &kMethods;
  return SQLITE_OK;
}

int DeleteFile(sqlite3_vfs* vfs, const char* path, int sync_folder) {
  const int met = Meet(SqliteCall::Op::kDelete, path, 0);
  if (met == kSqliteCallIsDropped) return SQLITE_OK;
  if (met > 0) return Failed(met, SQLITE_IOERR_DELETE);
  return Real(vfs)->xDelete(Real(vfs), path, sync_folder);
}

// Returns the operating system's VFS under our name, but with our files. Calls that are forwarded
// to it get it as their object, so that it finds its own data.
sqlite3_vfs* MakeVfs() {
  sqlite3_vfs* real = sqlite3_vfs_find("unix");
  if (!real) return nullptr;
  static sqlite3_vfs vfs;
  vfs = *real;
  vfs.iVersion = 2;  // version 3 adds system calls for tests of the real VFS to replace
  vfs.pNext = nullptr;
  vfs.zName = kName;
  vfs.pAppData = real;
  vfs.szOsFile = static_cast<int>(kRealAt) + real->szOsFile;
  vfs.xOpen = OpenFile;
  vfs.xDelete = DeleteFile;
  vfs.xAccess = [](sqlite3_vfs* v, const char* path, int flags, int* out) {
    return Real(v)->xAccess(Real(v), path, flags, out);
  };
  vfs.xFullPathname = [](sqlite3_vfs* v, const char* path, int size, char* out) {
    return Real(v)->xFullPathname(Real(v), path, size, out);
  };
  vfs.xDlOpen = [](sqlite3_vfs* v, const char* path) { return Real(v)->xDlOpen(Real(v), path); };
  vfs.xDlError = [](sqlite3_vfs* v, int size, char* out) { Real(v)->xDlError(Real(v), size, out); };
  vfs.xDlSym = [](sqlite3_vfs* v, void* library, const char* symbol) {
    return Real(v)->xDlSym(Real(v), library, symbol);
  };
  vfs.xDlClose = [](sqlite3_vfs* v, void* library) { Real(v)->xDlClose(Real(v), library); };
  vfs.xRandomness = [](sqlite3_vfs* v, int size, char* out) {
    return Real(v)->xRandomness(Real(v), size, out);
  };
  vfs.xSleep = [](sqlite3_vfs* v, int us) { return Real(v)->xSleep(Real(v), us); };
  vfs.xCurrentTime = [](sqlite3_vfs* v, double* out) {
    return Real(v)->xCurrentTime(Real(v), out);
  };
  vfs.xGetLastError = [](sqlite3_vfs* v, int size, char* out) {
    return Real(v)->xGetLastError(Real(v), size, out);
  };
  vfs.xCurrentTimeInt64 = [](sqlite3_vfs* v, sqlite3_int64* out) {
    return Real(v)->xCurrentTimeInt64(Real(v), out);
  };
  return &vfs;
}

}  // namespace

const char* SqliteVfsName() {
  static const bool is_registered = [] {
    if (sqlite3_initialize() != SQLITE_OK) return false;
    sqlite3_vfs* vfs = MakeVfs();
    return vfs && sqlite3_vfs_register(vfs, /*makeDflt=*/0) == SQLITE_OK;
  }();
  return is_registered ? kName : nullptr;
}

std::string LastBrokenSeal() { return BrokenSeal(); }

int LastWriteErrno() { return WriteErrno(); }

void SetSqliteHook(SqliteHook hook) { Hook() = std::move(hook); }

}  // namespace spillway::io
