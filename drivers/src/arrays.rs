//! Array objects that are used again.
//!
//! An Arrow array is an object of some 110 bytes around its values, and a polled row has one for
//! each point. A pool keeps a second handle to each array that it gave away; where all others have
//! dropped theirs, the object is filled anew in its place. So what is polled all the time allocates
//! nothing for a point. Knows no tables and no rows.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::{Array, ArrayRef, BinaryArray, BooleanArray, PrimitiveArray, StringArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, TimestampMicrosecondType,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};

/// Arrays of one type that are kept at most: 8 MiB with their objects. What a gateway keeps follows
/// from how many its consumers held at once.
const KEPT_MAX: usize = 65_536;

/// A pool of array objects, shared by tables that are filled on one thread. Cheap to clone.
#[derive(Clone, Default)]
pub struct ArrayPool(Arc<Mutex<Rings>>);

impl std::fmt::Debug for ArrayPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArrayPool").finish_non_exhaustive()
    }
}

impl ArrayPool {
    /// The arrays, for as long as a batch is made.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Rings> {
        // What a panic leaves is whole: an object is replaced as one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Arrays of one type, the oldest first.
pub(crate) struct Ring<A>(VecDeque<Arc<A>>);

impl<A> Default for Ring<A> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<A: Array + 'static> Ring<A> {
    /// Makes a shared array of `array`.
    fn share(&mut self, array: A) -> ArrayRef {
        let shared = self.fill_again(array).unwrap_or_else(Arc::new);
        self.0.push_back(Arc::clone(&shared));
        shared
    }

    /// Puts `array` in the place of the oldest one, where nobody uses that any more.
    fn fill_again(&mut self, array: A) -> Result<Arc<A>, A> {
        let Some(mut oldest) = self.0.pop_front() else { return Err(array) };
        if let Some(place) = Arc::get_mut(&mut oldest) {
            *place = array;
            return Ok(oldest);
        }
        // One that is still held when the ring is full is held for long: forget it.
        if self.0.len() + 1 < KEPT_MAX {
            self.0.push_front(oldest);
        }
        Err(array)
    }
}

/// A type of array that is pooled.
pub(crate) trait Pooled: Array + Sized + 'static {
    fn ring(rings: &mut Rings) -> &mut Ring<Self>;
}

macro_rules! rings {
    ($($field:ident: $array:ty),+ $(,)?) => {
        /// One ring for each type that drivers declare.
        #[derive(Default)]
        pub(crate) struct Rings {
            $($field: Ring<$array>,)+
            null_row: Option<NullBuffer>,
        }

        $(impl Pooled for $array {
            fn ring(rings: &mut Rings) -> &mut Ring<Self> {
                &mut rings.$field
            }
        })+
    };
}

rings! {
    bool: BooleanArray,
    i8: PrimitiveArray<Int8Type>,
    i16: PrimitiveArray<Int16Type>,
    i32: PrimitiveArray<Int32Type>,
    i64: PrimitiveArray<Int64Type>,
    u8: PrimitiveArray<UInt8Type>,
    u16: PrimitiveArray<UInt16Type>,
    u32: PrimitiveArray<UInt32Type>,
    u64: PrimitiveArray<UInt64Type>,
    f32: PrimitiveArray<Float32Type>,
    f64: PrimitiveArray<Float64Type>,
    time: PrimitiveArray<TimestampMicrosecondType>,
    text: StringArray,
    bytes: BinaryArray,
}

impl Rings {
    /// Makes a shared array of `array`.
    pub(crate) fn share<A: Pooled>(&mut self, array: A) -> ArrayRef {
        A::ring(self).share(array)
    }

    /// The validity of one row without a value: the same object for all.
    pub(crate) fn null_row(&mut self) -> NullBuffer {
        self.null_row.get_or_insert_with(|| NullBuffer::new_null(1)).clone()
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::Int32Array;

    use super::*;

    fn address(array: &ArrayRef) -> *const () {
        Arc::as_ptr(array).cast()
    }

    #[test]
    fn an_array_is_used_again_only_when_all_have_let_it_go() {
        let pool = ArrayPool::default();
        let first = pool.lock().share(Int32Array::from(vec![1]));
        let (place, held) = (address(&first), first.clone());
        drop(first);
        let second = pool.lock().share(Int32Array::from(vec![2]));
        assert_ne!(address(&second), place);
        assert_eq!(held.as_ref(), &Int32Array::from(vec![1]), "it was not touched");
        drop(held);
        let third = pool.lock().share(Int32Array::from(vec![3]));
        assert_eq!(address(&third), place);
        assert_eq!(third.as_ref(), &Int32Array::from(vec![3]));
        assert_eq!(second.as_ref(), &Int32Array::from(vec![2]));
    }

    #[test]
    fn arrays_that_are_held_for_ever_do_not_fill_the_pool() {
        let mut ring = Ring::default();
        let held: Vec<_> =
            (0..KEPT_MAX + 10).map(|_| ring.share(Int32Array::new_null(0))).collect();
        assert_eq!(ring.0.len(), KEPT_MAX);
        drop(held);
        let place = Arc::as_ptr(&ring.0[0]).cast::<()>();
        assert_eq!(address(&ring.share(Int32Array::new_null(0))), place);
        assert_eq!(ring.0.len(), KEPT_MAX);
    }
}
