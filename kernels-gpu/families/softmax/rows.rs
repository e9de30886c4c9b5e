//! Kernels of the family `softmax`: rows of the kernel table.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_softmax {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            softmax {
                softmax "softmax" SoftmaxParams Own {
                    softmax_f32: Csr, F32, SoftmaxRows<4, 8, false>;
                    softmax_f16: Csr, F16, SoftmaxRows<8, 4, false>;
                    softmax_bf16: Csr, Bf16, SoftmaxRows<8, 4, false>;
                    softmax_gradient_f32: Csr, F32, SoftmaxRows<4, 8, true>;
                    softmax_gradient_f16: Csr, F16, SoftmaxRows<8, 4, true>;
                    softmax_gradient_bf16: Csr, Bf16, SoftmaxRows<8, 4, true>;
                }
            }
        }
    };
}
