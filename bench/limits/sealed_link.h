// SealedSocket: a BareSocket whose bytes travel in records of AES-256-GCM, by RecordCipher and nothing else of ours. What security costs at
// least. Its keys are constants: it protects nothing.
//
//   record = bytes:u32  0:u32  sequence:u64  payload  tag:16     little-endian; the header is authenticated
//
// Each byte of a payload is gone over once more on either side, while it is in the cache: a record is sealed right before it is sent,
// and opened when its last byte has arrived. kAuthenticate copies nothing: payloads are sent from and received into the caller's memory.
// kEncrypt seals into a buffer, and opens from another.
//
// Not thread-safe. As BareSocket, it never sleeps.

#ifndef BENCH_LIMITS_SEALED_LINK_H_
#define BENCH_LIMITS_SEALED_LINK_H_

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "bench/limits/link.h"
#include "transport/secure/cipher.h"

namespace lockstep::bench {

struct SealOptions {
  CipherMode mode = CipherMode::kAuthenticate;
  CipherBackend backend = CipherBackend::kOpenSsl;
  size_t record_bytes = size_t{64} << 10;  // of payload, in all records of a transfer but the last
  size_t batch_bytes = size_t{1} << 20;    // about so many go into a system call: one record at least
};

// One direction of a transfer: a few records at a time, in the pieces that a system call takes.
class RecordBatches {
 public:
  RecordBatches(const SealOptions& options, std::unique_ptr<RecordCipher> cipher);

  // A transfer of `bytes`, from or to `payload`.
  void Begin(unsigned char* payload, size_t bytes);
  bool done() const { return pieces_.empty() && bytes_ == 0; }

  // What to send, sealed, or where to receive. Empty when done.
  absl::Span<iovec> PiecesToSend();
  absl::Span<iovec> PiecesToReceive();

  // So many bytes of these pieces were moved.
  void Sent(size_t bytes) { Advance(bytes); }
  // Opens the records that are complete. DATA_LOSS: one is not genuine, or not the one that is due.
  absl::Status Received(size_t bytes);

 private:
  static constexpr size_t kHeaderBytes = 16;

  struct Record {
    std::array<unsigned char, kHeaderBytes> header, due;  // due: what it must be
    std::array<unsigned char, RecordCipher::kTagBytes> tag;
    unsigned char* plain;
    unsigned char* travels;  // plain itself, or a part of buffer_
    size_t bytes;
  };

  // The next batch, if the last one is through.
  void Fill(bool seals);
  void Advance(size_t bytes);

  SealOptions options_;
  std::unique_ptr<RecordCipher> cipher_;
  uint64_t sequence_ = 0;             // of the batch's first record
  unsigned char* payload_ = nullptr;  // behind the batch
  size_t bytes_ = 0;
  std::vector<Record> records_;  // of the batch; as many as one may have
  size_t count_ = 0;
  size_t opened_ = 0;
  std::vector<iovec> all_pieces_;      // of the batch: three a record
  absl::Span<iovec> pieces_;           // those of them that are not moved yet
  std::vector<unsigned char> buffer_;  // kEncrypt
};

class SealedSocket {
 public:
  // `side`: 0 at one end, 1 at the other. Each direction has a key. ERRORS as RecordCipher::Create.
  static absl::StatusOr<SealedSocket> Create(BareSocket socket, int side, const SealOptions& options);

  // As BareSocket::Exchange. DATA_LOSS: what arrived is not what was sent.
  absl::Status Exchange(const void* out, size_t out_bytes, void* in, size_t in_bytes);

 private:
  SealedSocket(BareSocket socket, RecordBatches out, RecordBatches in)
      : socket_(std::move(socket)), out_(std::move(out)), in_(std::move(in)) {}

  BareSocket socket_;
  RecordBatches out_;
  RecordBatches in_;
};

}  // namespace lockstep::bench

#endif  // BENCH_LIMITS_SEALED_LINK_H_
