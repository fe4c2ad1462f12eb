"""What the order counts where that is not a row: groups, draws by weight, n-grams and packed rows, counted once."""
