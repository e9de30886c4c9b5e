//! Rows of the kernel table that belong to the family `attention`.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_attention {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            attention {
                attention "attention" AttentionParams Attention {
                    attention_f16_d64: Block, F16, Attention<1>;
                    attention_f16_d128: Block, F16, Attention<2>;
                    attention_bf16_d64: Block, Bf16, Attention<1>;
                    attention_bf16_d128: Block, Bf16, Attention<2>;
                }
                attention_mma "attention_mma" AttentionParams Attention {
                    attention_mma_f16_d64: Block, F16, Attention<1, MmaSync, CpAsync>;
                    attention_mma_f16_d128: Block, F16, Attention<2, MmaSync, CpAsync>;
                    attention_mma_bf16_d64: Block, Bf16, Attention<1, MmaSync, CpAsync>;
                    attention_mma_bf16_d128: Block, Bf16, Attention<2, MmaSync, CpAsync>;
                }
                decode "decode" DecodeParams Own {
                    attention_decode_f16_d64: Direct, F16, Decode<1>;
                    attention_decode_f16_d128: Direct, F16, Decode<2>;
                    attention_decode_bf16_d64: Direct, Bf16, Decode<1>;
                    attention_decode_bf16_d128: Direct, Bf16, Decode<2>;
                }
                decode_mma "decode_mma" DecodeParams Own {
                    attention_decode_mma_f16_d64: Direct, F16, Decode<1, CpAsync>;
                    attention_decode_mma_f16_d128: Direct, F16, Decode<2, CpAsync>;
                    attention_decode_mma_bf16_d64: Direct, Bf16, Decode<1, CpAsync>;
                    attention_decode_mma_bf16_d128: Direct, Bf16, Decode<2, CpAsync>;
                }
                key_blocks "key_blocks" KeyBlocksParams Own {
                    attention_key_blocks: Direct, F32, KeyBlocks;
                }
                masks "masks" MaskParams Detection {
                    attention_masks: Direct, F32, MaskTiles;
                }
            }
        }
    };
}
