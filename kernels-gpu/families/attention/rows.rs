//! Rows of the kernel table that belong to the family `attention`.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_attention {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            attention {
                "attention" AttentionParams Attention {
                    attention_f16_d64 F16, attention_bf16_d64 Bf16: Block, Attention<1>;
                    attention_f16_d128 F16, attention_bf16_d128 Bf16: Block, Attention<2>;
                    attention_mma_f16_d64 F16, attention_mma_bf16_d64 Bf16: Block, Attention<1, MmaSync, CpAsync>;
                    attention_mma_f16_d128 F16, attention_mma_bf16_d128 Bf16: Block, Attention<2, MmaSync, CpAsync>;
                }
                "decode" DecodeParams Own {
                    attention_decode_f16_d64 F16, attention_decode_bf16_d64 Bf16: Direct, Decode<1>;
                    attention_decode_f16_d128 F16, attention_decode_bf16_d128 Bf16: Direct, Decode<2>;
                    attention_decode_mma_f16_d64 F16, attention_decode_mma_bf16_d64 Bf16: Direct, Decode<1, CpAsync>;
                    attention_decode_mma_f16_d128 F16, attention_decode_mma_bf16_d128 Bf16: Direct, Decode<2, CpAsync>;
                }
                "masks" KeyBlocksParams Own {
                    attention_key_blocks F32: Direct, KeyBlocks;
                }
                "masks" MaskParams Detection {
                    attention_masks F32: Direct, MaskTiles;
                }
            }
        }
    };
}
