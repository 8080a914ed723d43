-- The request of an owner-less charge ended; says whether there was such a charge.
local id, expire_ms = ARGV[1], tonumber(ARGV[2])

local known = find_unowned(id, expire_ms)
if known then
  end_unowned(id, known)
end
write_changes()
return known and 1 or 0
