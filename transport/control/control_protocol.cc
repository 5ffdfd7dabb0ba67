#include "transport/control/control_protocol.h"

#include <string.h>

#include <type_traits>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/error_info.h"
#include "base/status.h"
#include "transport/net/little_endian.h"

namespace lockstep::control {
namespace {

constexpr char kCoordinatorRecordName[] = "lockstep-control";
constexpr char kFailureRecordName[] = "lockstep-failed";
constexpr char kNoSecret[] = "-";
constexpr char kUnknown[] = "-";
constexpr size_t kFailureTextBytesMax = 4096;
constexpr int kFailureRanksMax = 1 << 20;  // of a world
constexpr int kErrorCodeMax = static_cast<int>(absl::StatusCode::kUnauthenticated);

class Writer {
 public:
  template <typename... T>
  void operator()(const T&... values) {
    (Put(values), ...);
  }
  void IgnoreRest() {}
  void Error(const absl::Status& status) { (*this)(status, ToText(GetErrorInfo(status))); }

  std::string bytes;

 private:
  template <typename T>
  std::enable_if_t<std::is_integral_v<T>> Put(T value) {
    AppendLittleEndian(&bytes, static_cast<std::make_unsigned_t<T>>(value));
  }
  void Put(RejectReason reason) { Put(static_cast<uint8_t>(reason)); }
  void Put(Rank rank) { Put(static_cast<uint32_t>(rank.value())); }
  void Put(const std::string& text) {
    Put(static_cast<uint32_t>(text.size()));
    bytes += text;
  }
  void Put(const SocketAddress& address) { Put(address.length() == 0 ? std::string() : address.ToString()); }
  void Put(const std::shared_ptr<const Secret>& secret) {
    const absl::string_view value = secret == nullptr ? "" : secret->bytes();
    Put(static_cast<uint32_t>(value.size()));
    bytes.append(value.data(), value.size());
  }
  void Put(const absl::Status& status) {
    Put(static_cast<uint32_t>(status.code()));
    Put(std::string(status.message()));
  }
  void Put(const Member& member) {
    (*this)(member.rank, member.host, member.host_id, member.pid, member.launched_as, member.data_address,
            member.shm_address, member.ofi_address, member.cores);
  }
  void Put(const Progress& progress) { (*this)(progress.started, progress.completed); }
  template <typename A, typename B>
  void Put(const std::pair<A, B>& pair) {
    (*this)(pair.first, pair.second);
  }
  template <typename T>
  void Put(const std::vector<T>& list) {
    Put(static_cast<uint32_t>(list.size()));
    for (const T& element : list) Put(element);
  }
};

// After the first error everything reads as empty, so that only the end needs a look at error().
class Reader {
 public:
  explicit Reader(absl::string_view bytes) : rest_(bytes) {}

  template <typename... T>
  void operator()(T&... values) {
    (Get(&values), ...);
  }
  void IgnoreRest() { rest_ = {}; }
  void Error(absl::Status& status) {
    std::string info;
    (*this)(status, info);
    status = WithErrorInfo(std::move(status), ErrorInfoFromText(info));
  }

  absl::string_view rest() const { return rest_; }
  const char* error() const { return error_; }

 private:
  void Fail(const char* error) {
    if (error_ == nullptr) error_ = error;
    rest_ = {};
  }
  absl::string_view Take(size_t bytes) {
    if (bytes > rest_.size()) {
      Fail("it ends too early");
      return {};
    }
    const absl::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }

  template <typename T>
  std::enable_if_t<std::is_integral_v<T>> Get(T* value) {
    const absl::string_view bytes = Take(sizeof(T));
    *value = bytes.empty() ? T{0} : static_cast<T>(LoadLittleEndian<std::make_unsigned_t<T>>(bytes.data()));
  }
  void Get(RejectReason* reason) {
    uint8_t number = 0;
    Get(&number);
    if (number > static_cast<uint8_t>(RejectReason::kSetupFailed)) return Fail("unknown reason");
    *reason = static_cast<RejectReason>(number);
  }
  void Get(Rank* rank) {
    uint32_t value = 0;
    Get(&value);
    if (value > 0x7fffffff) return Fail("a rank out of range");
    *rank = Rank(static_cast<int>(value));
  }
  void Get(std::string* text) {
    uint32_t length = 0;
    Get(&length);
    const absl::string_view bytes = Take(length);
    text->assign(bytes.data(), bytes.size());
  }
  void Get(SocketAddress* address) {
    std::string text;
    Get(&text);
    if (text.empty()) return;
    absl::StatusOr<SocketAddress> parsed = SocketAddress::Parse(text);
    if (!parsed.ok()) return Fail("an address that is none");
    *address = *std::move(parsed);
  }
  void Get(std::shared_ptr<const Secret>* secret) {
    uint32_t length = 0;
    Get(&length);
    if (length == 0) return;
    absl::StatusOr<std::shared_ptr<const Secret>> read = Secret::FromBytes(Take(length));
    if (!read.ok()) return Fail("a secret that is none");
    *secret = *std::move(read);
  }
  void Get(absl::Status* status) {
    uint32_t code = 0;
    std::string message;
    (*this)(code, message);
    if (code == 0 || code > kErrorCodeMax) return Fail("no error code");
    *status = absl::Status(static_cast<absl::StatusCode>(code), message);
  }
  void Get(Member* member) {
    (*this)(member->rank, member->host, member->host_id, member->pid, member->launched_as, member->data_address,
            member->shm_address, member->ofi_address, member->cores);
  }
  void Get(Progress* progress) { (*this)(progress->started, progress->completed); }
  template <typename A, typename B>
  void Get(std::pair<A, B>* pair) {
    (*this)(pair->first, pair->second);
  }
  template <typename T>
  void Get(std::vector<T>* list) {
    uint32_t count = 0;
    Get(&count);
    // Grows as elements are really there: the count alone allocates nothing.
    for (uint32_t i = 0; i < count && error_ == nullptr; ++i) {
      list->emplace_back();
      Get(&list->back());
    }
  }

  absl::string_view rest_;
  const char* error_ = nullptr;
};

absl::Status Malformed(int type, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("control message of type ", type, ": ", what));
}

// Tries the alternatives of Message one after the other until the type fits.
template <size_t kIndex = 0>
absl::StatusOr<Message> DecodePayload(uint8_t type, absl::string_view payload) {
  if constexpr (kIndex < std::variant_size_v<Message>) {
    if (type != kIndex + 1) return DecodePayload<kIndex + 1>(type, payload);
    std::variant_alternative_t<kIndex, Message> candidate;
    Reader reader(payload);
    candidate.Fields(candidate, reader);
    if (reader.error() != nullptr) return Malformed(type, reader.error());
    if (!reader.rest().empty()) return Malformed(type, "bytes after its end");
    return Message(std::move(candidate));
  } else {
    return Malformed(type, "there is no such type");
  }
}

}  // namespace

std::string Encode(const Message& message) {
  Writer writer;
  writer(uint32_t{0}, static_cast<uint8_t>(message.index() + 1));
  std::visit([&writer](const auto& body) { body.Fields(body, writer); }, message);
  StoreLittleEndian(static_cast<uint32_t>(writer.bytes.size() - kFrameHeaderBytes), &writer.bytes[0]);
  return std::move(writer.bytes);
}

absl::StatusOr<Message> Decode(absl::string_view frame) {
  if (frame.empty()) return absl::InvalidArgumentError("control message without a type");
  return DecodePayload(static_cast<uint8_t>(frame[0]), frame.substr(1));
}

absl::StatusOr<bool> FrameReader::Next(absl::string_view* frame) {
  const absl::string_view rest = absl::string_view(buffer_).substr(begin_);
  size_t length = 0;
  if (rest.size() >= kFrameHeaderBytes) {
    length = LoadLittleEndian<uint32_t>(rest.data());
    if (length == 0 || length > limit_bytes_) {
      return absl::InvalidArgumentError(
          absl::StrCat("control frame of ", length, " bytes; 1 to ", limit_bytes_, " are allowed"));
    }
  }
  if (length == 0 || rest.size() - kFrameHeaderBytes < length) {
    explicit_bzero(&buffer_[0], begin_);
    buffer_.erase(0, begin_);
    begin_ = 0;
    return false;
  }
  *frame = rest.substr(kFrameHeaderBytes, length);
  begin_ += kFrameHeaderBytes + length;
  return true;
}

std::string HostWord(const std::string& host_id) { return absl::BytesToHexString(host_id); }

std::string EncodeCoordinatorRecord(const CoordinatorRecord& record) {
  std::string secret = record.secret == nullptr ? kNoSecret : record.secret->Hex();
  const WipedAtEnd wiped(&secret);
  return absl::StrCat(kCoordinatorRecordName, " ", kVersion, " ", record.address.ToString(), " ", record.world, " ",
                      record.pid, " ", record.attempt, " ", record.seconds, " ",
                      record.host_id.empty() ? kUnknown : record.host_id, " ", secret, " ", record.host);
}

absl::StatusOr<CoordinatorRecord> DecodeCoordinatorRecord(absl::string_view text) {
  // The host comes last, since nothing else may contain a blank.
  const std::vector<absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits(' ', 9));
  const auto wrong = [] { return absl::InvalidArgumentError("not the address of a coordinator"); };
  if (parts.size() < 2 || parts[0] != kCoordinatorRecordName) return wrong();
  int version = 0;
  if (!absl::SimpleAtoi(parts[1], &version)) return wrong();
  if (version != kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank 0 speaks control protocol version ", version, ", this rank ", kVersion));
  }
  if (parts.size() != 10) return wrong();
  CoordinatorRecord record;
  const absl::StatusOr<SocketAddress> address = SocketAddress::Parse(parts[2]);
  if (!address.ok()) return wrong();
  record.address = *address;
  if (!absl::SimpleAtoi(parts[3], &record.world) || !absl::SimpleAtoi(parts[4], &record.pid) ||
      !absl::SimpleAtoi(parts[5], &record.attempt) || !absl::SimpleAtoi(parts[6], &record.seconds)) {
    return wrong();
  }
  if (parts[7] != kUnknown) record.host_id = std::string(parts[7]);
  if (parts[8] != kNoSecret) {
    absl::StatusOr<std::shared_ptr<const Secret>> secret = Secret::FromHex(parts[8]);
    if (!secret.ok()) return wrong();
    record.secret = *std::move(secret);
  }
  record.host = std::string(parts[9]);
  return record;
}

std::string EncodeFailureRecord(const FailureRecord& record) {
  std::vector<std::string> ranges;  // "1-3"
  for (size_t begin = 0, end; begin < record.untold.size(); begin = end) {
    for (end = begin + 1; end < record.untold.size() && record.untold[end] == record.untold[end - 1] + 1;) ++end;
    ranges.push_back(absl::StrCat(record.untold[begin], "-", record.untold[end - 1]));
  }
  return absl::StrCat(kFailureRecordName, " ", record.seconds, " ", static_cast<int>(record.status.code()), " ",
                      record.attempt, " ", absl::StrJoin(ranges, ","), " ",
                      PackMessage(record.status).substr(0, kFailureTextBytesMax));
}

absl::StatusOr<FailureRecord> DecodeFailureRecord(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits(' ', 5));
  const auto wrong = [] { return absl::InvalidArgumentError("not the end of a set-up"); };
  FailureRecord record;
  int code = 0;
  if (parts.size() != 6 || parts[0] != kFailureRecordName || !absl::SimpleAtoi(parts[1], &record.seconds) ||
      !absl::SimpleAtoi(parts[2], &code) || code <= 0 || code > kErrorCodeMax ||
      !absl::SimpleAtoi(parts[3], &record.attempt)) {
    return wrong();
  }
  int64_t least = 0;  // of the next range's ranks: all are sorted
  for (const absl::string_view range : absl::StrSplit(parts[4], ',', absl::SkipEmpty())) {
    const std::vector<absl::string_view> ends = absl::StrSplit(range, '-');
    int64_t first = 0;
    int64_t last = 0;
    if (ends.size() != 2 || !absl::SimpleAtoi(ends[0], &first) || !absl::SimpleAtoi(ends[1], &last) || first < least ||
        last < first || last >= kFailureRanksMax) {
      return wrong();
    }
    for (int64_t rank = first; rank <= last; ++rank) record.untold.push_back(static_cast<int>(rank));
    least = last + 1;
  }
  record.status = UnpackMessage(static_cast<absl::StatusCode>(code), parts[5]);
  return record;
}

}  // namespace lockstep::control
