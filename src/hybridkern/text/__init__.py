"""Text: vocabulary, streaming detokeniser, stop strings, chat templates, sampling."""

from hybridkern.text.chat import ChatTemplate
from hybridkern.text.detokenizer import Detokenizer
from hybridkern.text.fields import TokenizerWarning, TokenType
from hybridkern.text.params import SamplingParams
from hybridkern.text.sampling import Sampler
from hybridkern.text.stop import StopMatcher
from hybridkern.text.vocabulary import Vocabulary

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "Sampler",
    "SamplingParams",
    "StopMatcher",
    "TokenType",
    "TokenizerWarning",
    "Vocabulary",
]
