#include "transport/secure/cipher.h"

#include <openssl/err.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Bytes = std::vector<unsigned char>;

Bytes FromHex(absl::string_view hex) {
  Bytes bytes(hex.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i) {
    uint32_t byte = 0;
    EXPECT_TRUE(absl::SimpleHexAtoi(hex.substr(2 * i, 2), &byte));
    bytes[i] = static_cast<unsigned char>(byte);
  }
  return bytes;
}

Bytes Pattern(size_t count, int seed = 0) {
  Bytes bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<unsigned char>(i * 31 + i / 251 + seed);
  return bytes;
}

iovec Piece(const Bytes& bytes, size_t begin, size_t end) {
  return {const_cast<unsigned char*>(bytes.data()) + begin, end - begin};
}
std::vector<iovec> Whole(const Bytes& bytes) { return {Piece(bytes, 0, bytes.size())}; }

DirectionKey KeyOf(const Bytes& key, const Bytes& nonce) {
  DirectionKey result;
  std::copy_n(key.begin(), result.key.size(), result.key.begin());
  std::copy_n(nonce.begin(), result.nonce_base.size(), result.nonce_base.begin());
  return result;
}

struct Sealed {
  Bytes payload;  // as it is sent
  Bytes tag;
};

class RecordCipherTest : public ::testing::TestWithParam<CipherBackend> {
 protected:
  void SetUp() override {
    const absl::StatusOr<std::string> version = CipherBackendVersion(GetParam());
    if (absl::IsUnavailable(version.status())) GTEST_SKIP() << version.status();
    ASSERT_THAT(version.status(), IsOk());
  }

  static std::unique_ptr<RecordCipher> Cipher(CipherMode mode, const DirectionKey& key = AnyKey()) {
    absl::StatusOr<std::unique_ptr<RecordCipher>> cipher = RecordCipher::Create(GetParam(), mode, key);
    EXPECT_THAT(cipher.status(), IsOk());
    return *std::move(cipher);
  }

  static DirectionKey AnyKey() { return KeyOf(Pattern(32, 5), Pattern(12, 9)); }

  static Sealed Seal(RecordCipher* cipher, CipherMode mode, uint64_t sequence, const Bytes& header,
                     const Bytes& payload, absl::Span<const iovec> pieces) {
    Sealed sealed{payload, Bytes(RecordCipher::kTagBytes)};
    cipher->Seal(sequence, header, pieces, mode == CipherMode::kEncrypt ? sealed.payload.data() : nullptr,
                 sealed.tag.data());
    return sealed;
  }
  static Sealed Seal(RecordCipher* cipher, CipherMode mode, uint64_t sequence, const Bytes& header,
                     const Bytes& payload) {
    return Seal(cipher, mode, sequence, header, payload, Whole(payload));
  }

  // Whether it is genuine. Encrypted, then *opened is the payload, otherwise as many zeros.
  static bool Open(RecordCipher* cipher, CipherMode mode, uint64_t sequence, const Bytes& header, const Sealed& sealed,
                   Bytes* opened) {
    opened->assign(sealed.payload.size(), 0xee);
    const bool genuine = cipher->Open(sequence, header, Whole(sealed.payload), sealed.tag.data(),
                                      mode == CipherMode::kEncrypt ? opened->data() : nullptr);
    if (mode == CipherMode::kAuthenticate) *opened = sealed.payload;
    if (!genuine && mode == CipherMode::kEncrypt) {
      EXPECT_THAT(*opened, Each(0));
    }
    return genuine;
  }
};

constexpr CipherMode kModes[] = {CipherMode::kAuthenticate, CipherMode::kEncrypt};

struct KnownAnswer {
  CipherMode mode;
  const char *key, *nonce, *header, *payload, *sealed, *tag;
};

constexpr char kZeroKey[] = "0000000000000000000000000000000000000000000000000000000000000000";
constexpr char kZeroNonce[] = "000000000000000000000000";
constexpr char kKey[] = "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308";
constexpr char kNonce[] = "cafebabefacedbaddecaf888";

// Test cases 13 to 16 of "The Galois/Counter Mode of Operation (GCM)" by McGrew and Viega, the submission to NIST; and the first of
// gcmEncryptExtIV256.rsp with authenticated bytes only, of NIST's validation suite (CAVS 14).
const KnownAnswer kAnswers[] = {
    {CipherMode::kEncrypt, kZeroKey, kZeroNonce, "", "", "", "530f8afbc74536b9a963b4f1c4cb738b"},
    {CipherMode::kEncrypt, kZeroKey, kZeroNonce, "", "00000000000000000000000000000000",
     "cea7403d4d606b6e074ec5d3baf39d18", "d0d1c8a799996bf0265b98b5d48ab919"},
    {CipherMode::kEncrypt, kKey, kNonce, "",
     "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525"
     "b16aedf5aa0de657ba637b391aafd255",
     "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838"
     "c5f61e6393ba7a0abcc9f662898015ad",
     "b094dac5d93471bdec1a502270e3cc6c"},
    {CipherMode::kEncrypt, kKey, kNonce, "feedfacedeadbeeffeedfacedeadbeefabaddad2",
     "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525"
     "b16aedf5aa0de657ba637b39",
     "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838"
     "c5f61e6393ba7a0abcc9f662",
     "76fc6ece0f4e1768cddf8853bb2d551b"},
    {CipherMode::kAuthenticate, "78dc4e0aaf52d935c3c01eea57428f00ca1fd475f5da86a49c8dd73d68c8e223",
     "d79cf22d504cc793c3fb6c8a", "", "b96baa8c1c75a671bfb2d08d06be5f36", "b96baa8c1c75a671bfb2d08d06be5f36",
     "3e5d486aa2e30b22e040b85723a06e76"},
};

TEST_P(RecordCipherTest, GivesTheKnownAnswers) {
  for (const KnownAnswer& answer : kAnswers) {
    const Bytes payload = FromHex(answer.payload), header = FromHex(answer.header);
    // The same nonce by another base, from which the sequence number differs.
    for (const uint64_t sequence : {uint64_t{0}, uint64_t{1}, uint64_t{0x0123456789abcdef}}) {
      SCOPED_TRACE(absl::StrCat(answer.tag, ", sequence number ", sequence));
      Bytes base = FromHex(answer.nonce);
      for (int i = 0; i < 8; ++i) base[4 + i] ^= static_cast<unsigned char>(sequence >> (56 - 8 * i));
      const auto cipher = Cipher(answer.mode, KeyOf(FromHex(answer.key), base));
      const Sealed sealed = Seal(cipher.get(), answer.mode, sequence, header, payload);
      EXPECT_EQ(sealed.payload, FromHex(answer.sealed));
      EXPECT_EQ(sealed.tag, FromHex(answer.tag));
      Bytes opened;
      EXPECT_TRUE(Open(cipher.get(), answer.mode, sequence, header, sealed, &opened));
      EXPECT_EQ(opened, payload);
    }
  }
}

TEST_P(RecordCipherTest, OpensWhatItSealedAtEveryLengthAndAsOpenSslDoes) {
  std::vector<size_t> lengths = {4096, 65536, 65536 + 48};
  for (size_t bytes = 0; bytes <= 200; ++bytes) lengths.push_back(bytes);
  for (const CipherMode mode : kModes) {
    const auto cipher = Cipher(mode);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto openssl, RecordCipher::Create(CipherBackend::kOpenSsl, mode, AnyKey()));
    for (const size_t bytes : lengths) {
      SCOPED_TRACE(bytes);
      const Bytes payload = Pattern(bytes), header = Pattern(bytes % 33);
      const Sealed sealed = Seal(cipher.get(), mode, bytes, header, payload);
      const Sealed expected = Seal(openssl.get(), mode, bytes, header, payload);
      EXPECT_EQ(sealed.tag, expected.tag);
      EXPECT_EQ(sealed.payload, expected.payload);
      EXPECT_EQ(sealed.payload == payload, mode == CipherMode::kAuthenticate || bytes == 0);
      Bytes opened;
      EXPECT_TRUE(Open(cipher.get(), mode, bytes, header, sealed, &opened));
      EXPECT_EQ(opened, payload);
    }
  }
}

// A header's end is part of what the tag is over, and so is where ciphered bytes begin.
TEST_P(RecordCipherTest, EncryptedAByteDoesNotMoveBetweenHeaderAndPayload) {
  const auto cipher = Cipher(CipherMode::kEncrypt);
  const Bytes header = Pattern(16), payload = Pattern(40);
  Sealed sealed = Seal(cipher.get(), CipherMode::kEncrypt, 3, header, payload);
  Bytes longer = header;
  longer.push_back(sealed.payload.front());
  sealed.payload.erase(sealed.payload.begin());
  Bytes opened;
  EXPECT_FALSE(Open(cipher.get(), CipherMode::kEncrypt, 3, longer, sealed, &opened));
}

TEST_P(RecordCipherTest, APayloadInPiecesIsTheSameRecord) {
  const Bytes header = Pattern(16), payload = Pattern(150);
  for (const CipherMode mode : kModes) {
    const bool encrypts = mode == CipherMode::kEncrypt;
    const auto cipher = Cipher(mode);
    const Sealed whole = Seal(cipher.get(), mode, 7, header, payload);
    for (size_t first = 0; first <= payload.size(); ++first) {
      for (const size_t second : {first, std::min(first + 17, payload.size()), payload.size()}) {
        SCOPED_TRACE(absl::StrCat("cuts at ", first, " and ", second));
        const auto cut = [&](const Bytes& bytes) {
          return std::vector<iovec>{Piece(bytes, 0, first), Piece(bytes, first, second),
                                    Piece(bytes, second, bytes.size())};
        };
        const Sealed sealed = Seal(cipher.get(), mode, 7, header, payload, cut(payload));
        EXPECT_EQ(sealed.payload, whole.payload);
        EXPECT_EQ(sealed.tag, whole.tag);
        Bytes opened(payload.size());
        EXPECT_TRUE(
            cipher->Open(7, header, cut(sealed.payload), sealed.tag.data(), encrypts ? opened.data() : nullptr));
        if (encrypts) {
          EXPECT_EQ(opened, payload);
        }
      }
    }
    const Sealed none = Seal(cipher.get(), mode, 8, header, Bytes(), {});
    Bytes opened;
    EXPECT_TRUE(Open(cipher.get(), mode, 8, header, none, &opened));
  }
}

TEST_P(RecordCipherTest, SealsAndOpensInPlace) {
  for (const size_t bytes : {1, 16, 1000, 65536}) {
    SCOPED_TRACE(bytes);
    const auto cipher = Cipher(CipherMode::kEncrypt);
    const Bytes header = Pattern(16), payload = Pattern(bytes);
    const Sealed apart = Seal(cipher.get(), CipherMode::kEncrypt, 1, header, payload);
    Bytes record = payload, tag(RecordCipher::kTagBytes);
    cipher->Seal(1, header, Whole(record), record.data(), tag.data());
    EXPECT_EQ(record, apart.payload);
    EXPECT_EQ(tag, apart.tag);
    EXPECT_TRUE(cipher->Open(1, header, Whole(record), tag.data(), record.data()));
    EXPECT_EQ(record, payload);
    // Neither what was sealed nor what it opened to is left.
    tag[0] ^= 1;
    EXPECT_FALSE(cipher->Open(1, header, Whole(record), tag.data(), record.data()));
    EXPECT_THAT(record, Each(0));
  }
}

TEST_P(RecordCipherTest, RefusesARecordOfWhichAnyBitWasChanged) {
  const Bytes payload = Pattern(37);
  for (const CipherMode mode : kModes) {
    const auto cipher = Cipher(mode);
    Bytes header = Pattern(16), opened;
    Sealed sealed = Seal(cipher.get(), mode, 5, header, payload);
    for (Bytes* part : {&header, &sealed.payload, &sealed.tag}) {
      for (size_t bit = 0; bit < part->size() * 8; ++bit) {
        (*part)[bit / 8] ^= 1 << bit % 8;
        EXPECT_FALSE(Open(cipher.get(), mode, 5, header, sealed, &opened)) << bit;
        (*part)[bit / 8] ^= 1 << bit % 8;
      }
    }
    EXPECT_TRUE(Open(cipher.get(), mode, 5, header, sealed, &opened)) << "refusals left something behind";
    EXPECT_EQ(opened, payload);
    EXPECT_EQ(ERR_peek_error(), 0) << "refusals left errors to OpenSSL's next user in this thread";
  }
}

TEST_P(RecordCipherTest, RefusesAnotherSequenceNumberKeyNonceModeOrLength) {
  const Bytes header = Pattern(16), payload = Pattern(100);
  for (const CipherMode mode : kModes) {
    const auto cipher = Cipher(mode);
    const Sealed sealed = Seal(cipher.get(), mode, 5, header, payload);
    Bytes opened;
    for (const uint64_t sequence : {uint64_t{4}, uint64_t{6}, uint64_t{0}, 5 + (uint64_t{1} << 32), ~uint64_t{5}}) {
      EXPECT_FALSE(Open(cipher.get(), mode, sequence, header, sealed, &opened)) << sequence;
    }
    DirectionKey other = AnyKey();
    other.key[31] ^= 1;
    EXPECT_FALSE(Open(Cipher(mode, other).get(), mode, 5, header, sealed, &opened));
    other = AnyKey();
    other.nonce_base[0] ^= 1;
    EXPECT_FALSE(Open(Cipher(mode, other).get(), mode, 5, header, sealed, &opened));
    const CipherMode opposite = mode == CipherMode::kEncrypt ? CipherMode::kAuthenticate : CipherMode::kEncrypt;
    EXPECT_FALSE(Open(Cipher(opposite).get(), opposite, 5, header, sealed, &opened));
    Sealed shorter = sealed;
    shorter.payload.pop_back();
    EXPECT_FALSE(Open(cipher.get(), mode, 5, header, shorter, &opened));
    Sealed longer = sealed;
    longer.payload.push_back(0);
    EXPECT_FALSE(Open(cipher.get(), mode, 5, header, longer, &opened));
  }
}

TEST_P(RecordCipherTest, EveryRecordHasATagAndAKeystreamOfItsOwn) {
  const Bytes header = Pattern(16), payload = Pattern(64);
  const auto cipher = Cipher(CipherMode::kEncrypt);
  const Sealed first = Seal(cipher.get(), CipherMode::kEncrypt, 0, header, payload);
  const Sealed second = Seal(cipher.get(), CipherMode::kEncrypt, 1, header, payload);
  EXPECT_NE(first.tag, second.tag);
  EXPECT_NE(first.payload, second.payload);
}

INSTANTIATE_TEST_SUITE_P(Backends, RecordCipherTest,
                         ::testing::Values(CipherBackend::kOpenSsl, CipherBackend::kIpsecMb), [](const auto& info) {
                           return info.param == CipherBackend::kOpenSsl ? "OpenSsl" : "IpsecMb";
                         });

TEST(CipherBackend, TellsItsVersion) {
  EXPECT_THAT(CipherBackendVersion(CipherBackend::kOpenSsl), IsOkAndHolds(StartsWith("OpenSSL 3.")));
  const absl::StatusOr<std::string> ipsec_mb = CipherBackendVersion(CipherBackend::kIpsecMb);
  if (ipsec_mb.ok()) {
    EXPECT_THAT(*ipsec_mb, StartsWith("ipsec-mb 1."));
  } else {
    EXPECT_THAT(ipsec_mb.status(),
                StatusIs(absl::StatusCode::kUnavailable, AnyOf(HasSubstr("ipsec-mb"), HasSubstr("IPSec_MB"))));
    EXPECT_EQ(RecordCipher::Create(CipherBackend::kIpsecMb, CipherMode::kEncrypt, DirectionKey()).status(),
              ipsec_mb.status());
  }
}

}  // namespace
}  // namespace lockstep
