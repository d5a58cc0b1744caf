//! What makes the simulation fast on the machine that runs it; nothing here has an effect on results.

#![allow(unsafe_code)]

/// Starts fetching the cache line that holds the start of `value`: a simulated LLC is larger than a real L2,
/// and without prefetching most of a simulated load is one real cache miss after another.
#[inline(always)]
pub(crate) fn fetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no architectural effect and cannot fault, and the address is that of a live
    // reference anyway.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// Bit i of the result tells whether `lanes[i]` equals `value`.
#[inline(always)]
pub(crate) fn equal_lanes(lanes: &[u32; 16], value: u32) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{
            __m128i, _mm_cmpeq_epi32, _mm_loadu_si128, _mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32,
            _mm_set1_epi32,
        };
        // SAFETY: every x86-64 processor has SSE2; the four unaligned loads of 16 bytes at offsets 0, 16, 32
        // and 48 lie within the array's 64 bytes.
        unsafe {
            let wanted = _mm_set1_epi32(value.cast_signed());
            let start = lanes.as_ptr().cast::<__m128i>();
            let equal = |i: usize| _mm_cmpeq_epi32(_mm_loadu_si128(start.add(i)), wanted);
            let low = _mm_packs_epi32(equal(0), equal(1));
            let high = _mm_packs_epi32(equal(2), equal(3));
            _mm_movemask_epi8(_mm_packs_epi16(low, high)).cast_unsigned()
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    lanes.iter().enumerate().fold(0, |bits, (i, &lane)| bits | u32::from(lane == value) << i)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_equal_lane_sets_its_bit() {
        let mut lanes: [u32; 16] = std::array::from_fn(|i| i as u32 + 0x8000_0000);
        for (i, value) in lanes.into_iter().enumerate() {
            assert_eq!(equal_lanes(&lanes, value), 1 << i);
        }
        assert_eq!(equal_lanes(&lanes, 3), 0);
        lanes[3] = lanes[11];
        assert_eq!(equal_lanes(&lanes, lanes[11]), 1 << 3 | 1 << 11);
    }
}
