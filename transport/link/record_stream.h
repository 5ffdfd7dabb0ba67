// A byte stream in records that nobody can change unnoticed, nor read if they are encrypted, over a byte stream that somebody may tamper
// with.
//
//   stream  = record*                                            each way by itself
//   record  = bytes:u32 key:u32 sequence:u64 payload tag:16      little-endian
//
// `bytes` is the payload's length, from 1 to kRecordPayloadBytesMax. `sequence` counts records from 0; `key` counts keys, of which each
// seals kRecordsPerKey records (record_keys.h). Header and payload are sealed by AES-256-GCM (transport/secure/cipher.h) under the
// sequence number: at level authenticate the payload is as it is, at level encrypt it is ciphered.
//
// A stream that is cut between two records ends as one that was closed does, or whose writer died: all are errors to whoever waits for a
// message. One that is cut inside a record says so.

#ifndef TRANSPORT_LINK_RECORD_STREAM_H_
#define TRANSPORT_LINK_RECORD_STREAM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "transport/link/byte_stream.h"
#include "transport/link/record_keys.h"
#include "transport/secure/cipher.h"
#include "transport/secure/credentials.h"

namespace lockstep {

inline constexpr size_t kRecordHeaderBytes = 16;
inline constexpr size_t kRecordOverheadBytes = kRecordHeaderBytes + RecordCipher::kTagBytes;
// Of a payload that needs several records. One behind the header of its message still fits into one.
inline constexpr size_t kRecordCutBytes = size_t{64} << 10;
inline constexpr size_t kRecordPayloadBytesMax = kRecordCutBytes + 64;
inline constexpr size_t kRecordBytesMax = kRecordPayloadBytesMax + kRecordOverheadBytes;

// How many records go into one call of the stream below at most: a header and 256 KiB. More would not stay in the processor's cache.
inline constexpr int kRecordBatch = 5;

// Into how much a reader of long messages takes what has arrived.
inline constexpr size_t kRecordReadBytes = 16 * kRecordBytesMax;

// Writes records. Externally synchronised.
//
// Bytes that do not fit into one record are cut every kRecordCutBytes, but for a short first piece, a message's header, that has a record
// of its own: so the payload is deciphered straight to where it goes.
//
// It takes the bytes of a record when all of the record has left. So the next call begins with what is left of the same pieces, even after
// -EAGAIN: they may be sealed already, and on their way.
class RecordWriter final : public ByteStream {
 public:
  RecordWriter(std::unique_ptr<ByteStream> stream, SecurityLevel level, const RecordSecret& secret,
               uint64_t records_per_key = kRecordsPerKey);

  ssize_t Write(const iovec* pieces, int count) override;
  ssize_t Read(const iovec* pieces, int count) override;  // -EBADF

 private:
  // Where the records of a batch end in its bytes, and what is in them.
  struct Record {
    size_t end;
    size_t payload_bytes;
  };

  // The next batch, of what follows in the pieces.
  void SealBatch(absl::Span<const iovec> pieces, size_t begin, size_t end);
  void SealRecord(absl::Span<const iovec> payload);
  // To the batch.
  void Append(void* data, size_t bytes);
  // So many bytes of the batch have left. Returns how many of payloads in records that are through now.
  size_t Sent(size_t bytes);

  const std::unique_ptr<ByteStream> stream_;
  RecordSequence sequence_;
  // The batch that is under way: all of it is through if left_ is empty.
  std::array<Record, kRecordBatch> records_;
  int first_ = 0;  // that is not through
  int count_ = 0;
  std::array<iovec, kPiecesMax> pieces_;
  absl::Span<iovec> left_;
  size_t batch_bytes_ = 0;
  size_t sent_bytes_ = 0;
  // Headers and tags, and payloads that do not travel from where they lie.
  std::vector<unsigned char> sealed_;
  unsigned char* sealed_end_ = nullptr;
};

// Reads records. Externally synchronised.
//
// Reads ahead, into kRecordReadBytes if it was ever asked for more than a record. Returns less than is asked for only if the stream below
// has no more.
class RecordReader final : public ByteStream {
 public:
  RecordReader(std::unique_ptr<ByteStream> stream, SecurityLevel level, const RecordSecret& secret,
               uint64_t records_per_key = kRecordsPerKey);

  ssize_t Write(const iovec* pieces, int count) override;  // -EBADF
  // -EBADMSG for a record that is not genuine, and from then on: nothing of it was put into the pieces but zeros, and Defect() says
  // what is wrong. 0 with a Defect() for a stream that is cut inside a record.
  ssize_t Read(const iovec* pieces, int count) override;
  bool views() const override { return true; }
  ssize_t View(size_t bytes, const unsigned char** data) override;
  std::string Defect() const override { return defect_; }

 private:
  // Opens the next record: into `place` if it is deciphered and fits in, else into the buffer. How long it is, or what View is to return.
  ssize_t OpenRecord(size_t asked_bytes, const iovec& place);
  // Reads on until so many bytes have arrived that are not opened. 1, or what View is to return.
  ssize_t Fill(size_t bytes, size_t asked_bytes);
  // From now on View returns `result`.
  ssize_t Fail(ssize_t result, std::string defect);

  const std::unique_ptr<ByteStream> stream_;
  RecordSequence sequence_;
  ssize_t result_ = 1;  // of Fail
  std::string defect_;
  // [opened_begin_, opened_end_) is opened and not given away. [begin_, end_) is what has arrived behind it.
  std::vector<unsigned char> buffer_;
  size_t opened_begin_ = 0;
  size_t opened_end_ = 0;
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace lockstep

#endif  // TRANSPORT_LINK_RECORD_STREAM_H_
